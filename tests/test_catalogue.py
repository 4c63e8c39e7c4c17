"""What every patch owes, checked over the whole catalogue."""

import re
from pathlib import Path

import pytest

from mcore_autopatch import Affected, Patch, PatchDefinitionError, catalogue, patches, reproductions

PATCHES = catalogue.load().patches
TESTS = Path(__file__).parent / "patches"
EACH = pytest.mark.parametrize("patch", PATCHES.values(), ids=PATCHES)


def files(package):
    return {path.stem for folder in package.__path__ for path in Path(folder).glob("[!_]*.py")}


def test_every_patch_file_is_in_the_catalogue_and_none_is_broken():
    assert catalogue.load().broken == ()
    assert {patch.replace("-", "_") for patch in PATCHES} == files(patches)


def test_every_patch_has_a_reproduction_and_a_test_file_of_its_name():
    assert files(patches) == files(reproductions)
    assert files(patches) == {path.stem.removeprefix("test_") for path in TESTS.glob("test_*.py")}


@EACH
def test_the_test_file_has_a_table_of_releases(patch):
    assert "\nEXPECTED = {" in (TESTS / f"test_{patch.id.replace('-', '_')}.py").read_text()


@EACH
def test_texts_are_complete_sentences_with_a_link(patch):
    for field in ("symptom", "cause", "effect"):
        assert getattr(patch, field)[0].isupper() or field == "cause", field
        assert getattr(patch, field).endswith("."), field
    assert patch.errors
    assert not patch.title.endswith(".")
    assert patch.upstream.startswith("https://")
    assert patch.target.startswith("megatron.core.")
    assert patch.probe.__doc__


@EACH
def test_an_announced_patch_recognises_its_own_errors(patch):
    assert not patch.recognised_by or any(re.search(patch.recognised_by, error) for error in patch.errors)


@EACH
def test_the_functions_of_a_patch_can_be_pickled(patch):
    for function in (patch.probe, *patch.replacements.values()):
        assert "<locals>" not in function.__qualname__ and "<lambda>" not in function.__qualname__


def test_the_catalogue_loads_with_torch_megatron_and_wrapt_blocked(python):
    code = """
import sys
for name in ("torch", "torch_npu", "megatron", "wrapt"):
    sys.modules[name] = None
from mcore_autopatch import catalogue, installed, reporting, switches
found = catalogue.load()
print(*found.patches, found.broken)
"""
    assert python("-c", code, check=0).stdout == f"{' '.join(PATCHES)} ()\n"


def test_a_broken_patch_file_is_set_aside_and_named(tmp_path, monkeypatch):
    (tmp_path / "raises.py").write_text("raise SystemExit(3)")
    (tmp_path / "empty_one.py").write_text("")
    (tmp_path / "syntax.py").write_text("def")
    (tmp_path / "Wrong_Name.py").write_text("from mcore_autopatch.patches.mtp_inference import patch")
    monkeypatch.setattr(patches, "__path__", [*patches.__path__, str(tmp_path)])
    found = catalogue.load()
    assert found.patches == PATCHES
    assert {broken.id: type(broken.error) for broken in found.broken} == {
        "raises": SystemExit,
        "empty-one": PatchDefinitionError,
        "syntax": SyntaxError,
        "Wrong-Name": PatchDefinitionError,
    }
    assert "empty-one: the module must define patch = Patch(…)" in [str(broken.error) for broken in found.broken]


def test_the_nearest_id_is_found():
    found = catalogue.load()
    assert found.nearest("mtp-inferense") == "mtp-inference"
    assert found.nearest("serialisation_format") == "serialization-format"
    assert found.nearest("zzz") == ""


def declared(**fields):
    row = Affected(megatron_core=">=0.14", source="x")
    given = {"title": "t", "symptom": "s", "cause": "c", "effect": "e", "upstream": "u", "target": "m"}
    given.update(affected=(row,), probe=bool, replacements={"f": lambda original: original})
    return Patch(**{**given, **fields})


@pytest.mark.parametrize(
    "field", ["title", "symptom", "cause", "effect", "upstream", "target", "affected", "replacements"]
)
def test_a_declaration_with_a_hole_is_refused_by_name(field):
    with pytest.raises(PatchDefinitionError):
        declared(**{field: type(getattr(declared(), field))()})


@pytest.mark.parametrize("errors", ["KeyError: 1", ("",), ("two\nlines",), ["KeyError: 1"]])
def test_errors_are_lines_of_text(errors):
    with pytest.raises(PatchDefinitionError, match="errors"):
        declared(errors=errors)


def test_a_pattern_that_cannot_be_read_is_refused():
    with pytest.raises(PatchDefinitionError, match="recognised_by"):
        declared(recognised_by="(")


@pytest.mark.parametrize("patch_id", ["Upper", "under_score", "-x", "a--b", "ä"])
def test_an_id_is_lower_case_words_with_hyphens(patch_id):
    with pytest.raises(PatchDefinitionError, match="hyphens"):
        declared().replace(id=patch_id)


@pytest.mark.parametrize("fields", [{"megatron_core": "0.12"}, {"megatron_core": ""}, {"torch": ">>2"}, {"source": ""}])
def test_a_row_that_cannot_be_read_is_refused(fields):
    with pytest.raises(PatchDefinitionError):
        Affected(**{"megatron_core": ">=0.12", "source": "x", **fields})
