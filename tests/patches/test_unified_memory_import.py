"""unified-memory-import: megatron.core is imported where its extension cannot be compiled; nothing else changes."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from mcore_autopatch.patches import unified_memory_import

ID = "unified-memory-import"
SCRIPT = Path(__file__).parent / "unified_memory_import_body.py"
ERRORS = {
    "no-gpu": "IndexError: list index out of range",
    "stale-lock": "TimeoutError: import megatron.core has been in torch's FileBaton.wait for 10 seconds",
}
IMPORTED = "megatron.core is imported"
#: megatron-core release -> status and reason. The module is new in 0.15.
EXPECTED = {
    "0.15.0": "APPLIED",
    "0.15.1": "APPLIED",
    "0.15.2": "APPLIED",
    "0.15.3": "APPLIED",
    "0.16.0": "SKIPPED MEGATRON_VERSION",
    "0.16.1": "SKIPPED MEGATRON_VERSION",
    "0.17.0": "SKIPPED MEGATRON_VERSION",
}
IMPORT = "from torch.utils.cpp_extension import CUDA_HOME, load_inline\n"
IN_A_FUNCTION = f"{IMPORT}def compile_allocator():\n    load_inline(name='managed_alloc_runtime')\n"
ON_IMPORT = (
    f"{IMPORT}if True:\n    try:\n        _mod = load_inline(name='managed_alloc_runtime')\n    except OSError: ...\n"
)
SOMEBODY_ELSES = ON_IMPORT.replace("torch.utils", "my")
RENAMED = ON_IMPORT.replace("import CUDA_HOME, load_inline", "import load_inline as load, load as load_inline")


def module_of(source):
    loader = SimpleNamespace(get_source=lambda name: source)
    return SimpleNamespace(__name__="unified_memory", __spec__=SimpleNamespace(loader=loader))


@pytest.mark.parametrize("source", ["", IMPORT, IN_A_FUNCTION, SOMEBODY_ELSES, RENAMED])
def test_does_nothing_where_nothing_is_compiled_on_import(source):
    assert not unified_memory_import.probe(module_of(source))


def test_sees_the_bug_in_the_code():
    assert unified_memory_import.probe(module_of(ON_IMPORT))


def test_a_code_that_cannot_be_read_is_an_error_rather_than_a_bug():
    with pytest.raises(TypeError):
        unified_memory_import.probe(module_of(None))


@pytest.mark.real
def test_the_probe_has_the_last_word_on_a_forced_patch(outcome):
    assert outcome("0.16.0", ID, MCORE_AUTOPATCH_FORCE=ID) == ("SKIPPED", "BUG_ABSENT")


@pytest.mark.real
@pytest.mark.parametrize("version", ["0.15.0", "0.15.3"])
def test_megatron_core_is_imported_without_unified_memory(reproduce, version):
    assert reproduce(version, ID, check=0) == dict.fromkeys(ERRORS, f"{IMPORTED}, without unified memory")


@pytest.mark.real
@pytest.mark.parametrize("version", ["0.15.0", "0.15.3"])
def test_without_us_it_fails_or_waits(reproduce, version):
    assert reproduce(version, ID, check=1, MCORE_AUTOPATCH=0) == ERRORS


@pytest.fixture
def body(python, megatron_core, tmp_path):
    """Return a function that runs the body with compilations that end in the given ways: way -> what came of it."""

    def run(*ways, **variables):
        variables["TORCH_EXTENSIONS_DIR"] = tmp_path / "extensions"
        done = python(SCRIPT, *ways, overlays=[megatron_core("0.15.3")], check=0, **variables)
        return json.loads(done.stdout.splitlines()[-1]), done.stderr

    return run


@pytest.mark.real
def test_a_compilation_that_works_or_fails_as_expected_is_left_alone(body):
    """Compiled here or by another process: the same namespace, the same questions to torch."""
    results = []
    for switch in ("0", "1"):
        ways, _ = body("compiled", "compiled_by_another", "failed", MCORE_AUTOPATCH=switch)
        assert [way["has_unified_memory"] for way in ways.values()] == [True, True, False]
        for way in ways.values():
            del way["seconds"]
        results.append(ways)

    assert results[1] == results[0]


@pytest.mark.real
def test_a_compilation_that_fails_otherwise_or_is_never_done_ends_in_the_warning(body):
    ways, log = body("failed_unexpectedly", "somebody_elses_load_inline", "held_for_too_long", "held_by_a_killed_build")

    for way in ways.values():
        assert not way["has_unified_memory"] and way["allocator"] is None
        assert way["warnings"] == ["Failed to create unified memory mempool."]
        assert way["torch is as it was"] and way["load_inline is torch's"]
        assert all(way["builtins"]) and len(way["builtins"]) > 2
        assert all(way["others see torch's own"])
    assert len(ways["failed_unexpectedly"]["others see torch's own"]) == 2
    assert {name for name, way in ways.items() if way["still held"]} == {"held_for_too_long", "held_by_a_killed_build"}
    assert ways["held_by_a_killed_build"]["seconds"] < 6 <= ways["held_for_too_long"]["seconds"]
    assert log.count("seconds old, so the build that made it seems to have been killed") == 2
