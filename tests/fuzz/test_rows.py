"""Declarations with anything in any place: refused under the name of the patch, or good for every use."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from mcore_autopatch.declaration import Affected, Device, Patch
from mcore_autopatch.errors import PatchDefinitionError
from mcore_autopatch.matching import Combination, match
from mcore_autopatch.outcome import SkipReason
from mcore_autopatch.patches.mtp_inference import patch
from mcore_autopatch.switches import Switches

fuzz = settings.get_profile("fuzz")

specifiers = (
    st.text(max_size=12)
    | st.text("0123456789.,<>=!~*+- rcadevpost", max_size=30)
    | st.from_regex(r"(>=|<=|<|>|==|!=|~=|===)\s?[0-9]{1,3}(\.[0-9]{1,3}){0,3}(\.\*|rc1|\.dev0|\+ab)?", fullmatch=True)
    | st.integers(1, 6000).map(lambda digits: f">={'1' * digits}")
)
things = st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.lists(st.text()) | st.builds(object)
versions = (
    st.none() | st.sampled_from(["0.16.1", "0.12.0rc3", "2.9.0a0+50eac811a6.nv25.09", "1!3.post1", "x"]) | st.text()
)


def built(make, **fields):
    """Return what ``make`` makes, and under which name it refuses the fields in words."""
    try:
        return make(**fields), None
    except PatchDefinitionError as error:
        refused = error
    assert str(refused).startswith(f"{refused.patch}: ") and len(str(refused)) > len(refused.patch) + 10
    return None, refused.patch


@fuzz
@given(specifiers | things, specifiers | things, st.sampled_from([*Device, None]) | things, things, versions, versions)
@example(f">={'1' * 5000}", "", None, "x", "0.16", "2.9")
@example(["0.16"], "", None, "x", "0.16", "2.9")
@example("  ", "", None, "x", "0.16", "2.9")
@example(">=0", "", "npu", "x", "0.16", "2.9")
@example(">=0", "", None, 3, "0.16", "2.9")
def test_a_row_is_refused_or_can_be_matched_and_shown(core, torch, device, source, megatron_core, torch_version):
    row, name = built(Affected, megatron_core=core, torch=torch, device=device, source=source)
    if row is None:
        assert name == f"Affected({source!a})"
        return
    assert str(row).startswith(f"megatron-core {row.megatron_core}") and hash(row) == hash(row.replace())
    for here in (*Device, None):
        matched, reason, detail = match(
            patch.replace(affected=(row,)), Combination(megatron_core=megatron_core, torch=torch_version, device=here)
        )
        assert (matched is row) is (reason is None) and isinstance(detail, str)


@fuzz
@given(specifiers, specifiers, st.sampled_from([*Device, None]), versions, versions)
def test_a_row_with_texts_in_the_right_places_names_its_source_when_it_is_refused(core, torch, device, one, two):
    row, name = built(Affected, megatron_core=core, torch=torch, device=device, source="verl#1")
    if row is None:
        assert name == "Affected('verl#1')"
        return
    reason = match(patch.replace(affected=(row,)), Combination(megatron_core=one, torch=two, device=device))[1]
    assert reason is None or isinstance(reason, SkipReason)


words = st.from_regex(r"[a-z0-9]{1,6}(-[a-z0-9]{1,6}){0,3}", fullmatch=True)
patterns = st.text("()[]{}*+?|\\^$ab0129-:=!<>P", max_size=20)
fields = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(Patch.__annotations__, things | words),
        "recognised_by": patterns | things,
        "target": st.sampled_from(["megatron", "megatron.core", "megatron.core.a", "a..b", "a b"]) | things,
        "errors": things | st.tuples(things | words),
        "affected": things | st.tuples(things) | st.just(patch.affected),
        "replacements": things
        | st.dictionaries(words | things.filter(lambda thing: not isinstance(thing, list)), things),
        "additions": things | st.dictionaries(words, things),
        "probe": things | st.just(bool),
        "execution": things | st.just(bool),
    },
)


@fuzz
@given(fields, st.none() | words)
@example({"recognised_by": "(" * 5000}, None)
@example({"recognised_by": "a{99999999999999999999}"}, None)
@example({"recognised_by": "[[a"}, None)
@example({"recognised_by": 3}, None)
@example({"affected": ("x",)}, None)
@example({"affected": 3}, None)
@example({"errors": (3,)}, None)
@example({"id": 3}, None)
@example({"replacements": {"f": None}}, None)
@example({"probe": None}, None)
@example({"target": "a..b"}, None)
def test_a_declaration_is_refused_by_name_or_good_for_every_use(changes, name):
    if name is not None:
        changes = {**changes, "id": name}
    made, refused = built(patch.replace, **changes)
    if made is None:
        names = [text for text in (changes.get("id", ""), changes.get("title", patch.title)) if isinstance(text, str)]
        assert refused == next(filter(None, names), "patch")
        return
    for field, kind in Patch.__annotations__.items():
        assert kind is not str or isinstance(getattr(made, field), str), field
    assert all(isinstance(row, Affected) for row in made.affected)
    assert all(map(callable, (made.probe, *made.replacements.values())))
    assert isinstance(Switches.read({}).leaves_out(made), str)
    match(made, Combination(megatron_core="0.16.1", torch="2.9.0", device=None))
