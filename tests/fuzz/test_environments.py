"""Any environment: the switches are read, what is wrong is named in a line, and what is right is kept."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from mcore_autopatch import catalogue
from mcore_autopatch.switches import NAMES, Switches

fuzz = settings.get_profile("fuzz")

FOUND = catalogue.load()
#: As os.environ gives them: bytes that are no UTF-8 become surrogates.
bytes_of_the_system = st.binary(max_size=60).map(lambda value: value.decode("utf-8", "surrogateescape"))
texts = bytes_of_the_system | st.text(max_size=60)
lists_of_ids = st.lists(st.sampled_from(list(FOUND.patches)) | texts, max_size=30).map(",".join)
flags = st.sampled_from(["", "0", "1", "2", "3", " TRUE ", "off", "No", "²", "٣", "1" * 5000, "-1", "1e3"])
huge = st.tuples(texts, st.integers(1, 5000)).map(lambda pair: pair[0] * pair[1])
#: Of a text at most 80 characters are shown, each escaped by at most 10; beside them stand all ids.
LONGEST = 80 * 10 + len(", ".join(FOUND.patches)) + 100
names = st.sampled_from(NAMES) | texts.map("MCORE_AUTOPATCH".__add__) | texts
environments = st.dictionaries(names, lists_of_ids | flags | texts | huge, max_size=12)


@fuzz
@given(environments)
@example({})
@example({"MCORE_AUTOPATCH_VERBOSE": "²", "MCORE_AUTOPATCH_STRICT": "\x1b[31m\n"})
@example({"MCORE_AUTOPATCH_VERBOSE": "9" * 5000})
@example({f"MCORE_AUTOPATCH_{'DISABLE' * 10_000}": "\udcff" * 10_000})
@example({"MCORE_AUTOPATCH_DISABLE": "mtp-inference" * 10_000})
@example({"MCORE_AUTOPATCH_DISABLE": "\U00010000" * 100})
@example({f"MCORE_AUTOPATCH{'0' * 24}'0\"": ""})
def test_no_environment_raises_and_each_problem_is_a_line_that_names_its_variable(environ):
    switches = Switches.read(environ)
    assert switches.verbose in (0, 1, 2) and isinstance(switches.strict, bool)
    for problem in (*switches.problems, *FOUND.unknown(switches)):
        assert problem.isprintable() and len(problem) < LONGEST
        assert "MCORE_AUTOPATCH" in problem
    for name in environ:
        if name.startswith("MCORE_AUTOPATCH") and name not in NAMES:
            beginning = ascii(name if len(name) <= 40 else f"{name[:40]}…")
            assert any(beginning in problem for problem in switches.problems)


@fuzz
@given(
    st.sampled_from(["DISABLE", "ONLY", "FORCE", "ENABLE"]),
    st.lists(st.sampled_from(list(FOUND.patches)), max_size=5),
    st.lists(texts.filter(lambda text: "," not in text), max_size=5),
    st.sampled_from(["", " ", "\t", "\n"]),
    st.randoms(),
    environments,
)
def test_ids_that_are_known_survive_whatever_stands_beside_them(variable, ids, others, space, random, environ):
    mixed = [f"{space}{patch.upper()}{space}" for patch in ids] + others
    random.shuffle(mixed)
    switches = Switches.read({**environ, f"MCORE_AUTOPATCH_{variable}": ",".join(mixed)})
    assert set(ids) <= set(getattr(switches, variable.lower()))
    assert not any(f" names {patch!a}," in problem for patch in ids for problem in FOUND.unknown(switches))


@fuzz
@given(flags | texts)
def test_off_and_on_are_understood_and_nothing_else(text):
    switches = Switches.read({"MCORE_AUTOPATCH_STRICT": text})
    word = text.strip().lower()
    assert switches.strict is (word in ("1", "true", "on", "yes"))
    understood = word in ("", "0", "1", "true", "false", "on", "off", "yes", "no")
    assert bool(switches.problems) is not understood
