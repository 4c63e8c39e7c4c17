"""Folders of MCORE_AUTOPATCH_PATH with any files: what is no patch is set aside and named; all others load."""

import os
import sys
import tempfile
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mcore_autopatch import catalogue, cli
from mcore_autopatch.errors import PatchDefinitionError
from mcore_autopatch.foreign import described

fuzz = settings.get_profile("fuzz")

OWN = catalogue.load().patches
PATCH = """
from mcore_autopatch import Affected, Patch
patch = Patch(title="t", symptom="s", cause="c", effect="e", upstream="u", target="m", probe=bool,
              affected=(Affected(megatron_core=">=0.14", source="x"),), replacements={"f": lambda original: original})
"""
#: No letter that could make a call or a loop of a random text.
harmless = st.text("patch=()[]{}:,.'\"\\ \n\t0123#\x00é\ud800", max_size=60).map(
    lambda text: text.encode("utf-8", "surrogatepass")
)
statements = st.sampled_from(
    [
        "patch = 3",
        "patch = type('Patch', (), {})()",
        "raise SystemExit(3)",
        "raise BaseException('no')",
        "class E(Exception):\n    __str__ = None\nraise E",
        "def __getattr__(name): raise RuntimeError(name)",
        "import sys; del sys.modules[__name__]",
        "import sys; del sys.modules[__name__]; raise ValueError('x')",
        "import sys; sys.modules[__name__] = None",
        "import does_not_exist",
        "from mcore_autopatch import Affected; Affected(megatron_core='x', source='y')",
        "# coding: no-such-codec",
        "x = " + "(" * 3000,
        "x = " + "-" * 3000 + "1",
        "return",
        "\\d = '\\d'",
        "'\\d'",
    ]
).map(str.encode)
contents = (
    harmless | st.binary(max_size=60) | statements | st.tuples(statements, st.just(PATCH.encode())).map(b"\n".join)
)
file_names = st.from_regex(r"[a-zA-Z0-9_.\-éß ]{1,12}", fullmatch=True).filter(lambda name: name not in (".", ".."))


def loaded(files, *, more=()):
    """Return the catalogue over a folder of files and the ids from there, after checking that no file is lost."""
    with tempfile.TemporaryDirectory() as name:
        for file, content in files.items():
            Path(name, file).write_bytes(content)
        path = os.pathsep.join([name, *more])
        before = set(sys.modules)
        try:
            with mock.patch.dict(os.environ, MCORE_AUTOPATCH_PATH=path), mock.patch("sys.dont_write_bytecode", True):
                found = catalogue.load()
                for one in found.broken:
                    with pytest.raises(PatchDefinitionError) as told:
                        cli._known([one.id])
                    assert one.id in str(told.value)
        finally:
            for module in set(sys.modules) - before:
                del sys.modules[module]
        expected = [path.stem for path in Path(name).iterdir() if path.suffix == ".py" and path.name[0] != "_"]
    theirs = {patch for patch in found.patches if patch not in OWN}
    assert {patch: found.patches[patch] for patch in OWN} == OWN
    broken = [one for one in found.broken if one.id != "mcore-autopatch-path"]
    assert len(theirs) + len(broken) == len(expected)
    for one in found.broken:
        assert one.id.isprintable() and one.origin.isprintable() and described(one.error).isprintable()
    assert {*theirs, *(one.id for one in broken)} == {stem.replace("_", "-") for stem in expected}
    return found, theirs


@fuzz
@given(st.dictionaries(file_names.map("{}.py".format) | file_names, contents, max_size=4))
@example({"a.py": b"import sys; del sys.modules[__name__]\npatch = 3"})
@example({"b.py": b"import sys; del sys.modules[__name__]; raise ValueError('x')"})
@example({"a.py": b"class E(Exception):\n    __str__ = None\nraise E"})
@example({"c.py": b"\x00\xff", "d.py": b"def", "e.py": b""})
def test_a_file_that_is_no_patch_is_set_aside_and_named(files):
    loaded({**files, "zz-good.py": PATCH.encode()})


@fuzz
@given(file_names)
@example("mtp_inference")
@example("mtp-inference")
def test_a_good_file_is_a_patch_or_its_name_is_refused(stem):
    found, theirs = loaded({f"{stem}.py": PATCH.encode()})
    words = stem.replace("_", "-").split("-")
    allowed = all(word.isascii() and word.isalnum() and word.islower() for word in words)
    if not stem.startswith(("_", ".")) and allowed and "-".join(words) not in OWN:
        assert theirs == {"-".join(words)}
        assert found.broken == ()
    else:
        assert not theirs


@fuzz
@given(
    st.lists(
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20).filter(
            lambda text: not any(Path(entry).exists() for entry in text.split(os.pathsep))
        ),
        max_size=4,
    )
)
@example(["x" * 5000])
@example(["~no-such-user/x", "\x1b[31m"])
def test_what_is_no_folder_is_named_beside_one_that_is(paths):
    found, theirs = loaded({"good.py": PATCH.encode()}, more=paths)
    assert theirs == {"good"}
    entries = [entry for path in paths for entry in path.split(os.pathsep) if entry]
    assert len(found.broken) <= len(entries)
    assert all("MCORE_AUTOPATCH_PATH" in str(one.error) for one in found.broken)


def test_a_file_that_leaves_sys_modules_is_a_patch_and_what_it_raises_is_told():
    leaves = "import sys; del sys.modules[__name__]"
    found, theirs = loaded({"good.py": f"{leaves}{PATCH}".encode(), "bad.py": f"{leaves}; raise OSError".encode()})
    assert theirs == {"good"}
    assert [type(one.error) for one in found.broken] == [OSError]


def test_the_two_looks_of_a_process_find_the_same_functions(tmp_path, monkeypatch):
    (tmp_path / "looked_at_twice.py").write_text(PATCH)
    monkeypatch.setenv("MCORE_AUTOPATCH_PATH", str(tmp_path))
    one, two = (catalogue.load().patches["looked-at-twice"] for _ in range(2))
    assert one.replacements["f"] is two.replacements["f"]
    del sys.modules["_mcore_autopatch_path_looked_at_twice"]
