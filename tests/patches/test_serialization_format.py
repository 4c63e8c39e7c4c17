"""serialization-format: megatron-core 0.12 writes checkpoints with torch 2.8 and later, in every mode."""

import inspect
import json
from types import SimpleNamespace

import pytest

from mcore_autopatch.patches import serialization_format

ID = "serialization-format"
MODES = ("sync", "async", "persistent")
ERROR = "RuntimeError: Worker failure: _write_item() missing 1 required positional argument: 'serialization_format'"
#: Release -> what becomes of the patch there. A release that is not named must be SKIPPED.
EXPECTED = {
    "0.11.0": "SKIPPED MEGATRON_VERSION",
    **dict.fromkeys(["0.12.0", "0.12.1", "0.12.2", "0.12.3"], "APPLIED"),
    "0.13.0": "SKIPPED MEGATRON_VERSION",
}
EQUAL = "checkpoint read back equal, 7 entries"


def write_item_of_torch_2_7(stream, data): ...
def write_item_of_torch_2_8(stream, data, serialization_format): ...
def write_item_with_a_default(stream, data, serialization_format="torch_save"): ...


class WriterOf012:
    def write(self):
        write_item_of_torch_2_8("stream", "data")


class WriterOf013:
    def write(self):
        extra_kwargs = {}
        if "serialization_format" in inspect.signature(write_item_of_torch_2_8).parameters:
            extra_kwargs["serialization_format"] = "torch_save"
        write_item_of_torch_2_8("stream", "data", **extra_kwargs)


@pytest.mark.parametrize(
    ("write_item", "writer"),
    [
        (write_item_of_torch_2_7, WriterOf012),
        (write_item_with_a_default, WriterOf012),
        (write_item_of_torch_2_8, WriterOf013),
    ],
)
def test_does_nothing_where_the_format_is_not_asked_for_or_passed_already(write_item, writer):
    module = SimpleNamespace(_write_item=write_item, FileSystemWriterAsync=writer)

    assert not serialization_format.probe(module)


def test_sees_the_bug_in_the_code():
    module = SimpleNamespace(_write_item=write_item_of_torch_2_8, FileSystemWriterAsync=WriterOf012)

    assert serialization_format.probe(module)


def test_a_code_that_cannot_be_read_is_an_error_rather_than_a_bug():
    module = SimpleNamespace(_write_item=write_item_of_torch_2_8, FileSystemWriterAsync=int)

    with pytest.raises(TypeError):
        serialization_format.probe(module)


@pytest.mark.real
def test_does_nothing_on_a_release_that_passes_the_format(outcome):
    assert outcome("0.13.1", ID) == ("SKIPPED", "MEGATRON_VERSION")


@pytest.mark.real
def test_the_probe_has_the_last_word_on_a_forced_patch(outcome):
    assert outcome("0.13.1", ID, MCORE_AUTOPATCH_FORCE=ID) == ("SKIPPED", "BUG_ABSENT")


@pytest.mark.real
def test_a_caller_that_passes_a_format_is_obeyed(python, megatron_core):
    script = """
import functools, json
from torch.distributed.checkpoint import filesystem
@functools.wraps(filesystem._write_item)
def _write_item(transforms, stream, data, write_item, storage_key, serialization_format):
    assert (transforms, stream, data, write_item, storage_key) == (1, 2, 3, 4, 5)
    return getattr(serialization_format, "name", serialization_format)
filesystem._write_item = _write_item
from megatron.core.dist_checkpointing.strategies import filesystem_async
patched = filesystem_async._write_item
assert patched is not _write_item and filesystem._write_item is _write_item
calls = [patched(1, 2, 3, 4, 5, "mine"), patched(1, 2, 3, 4, 5, serialization_format="mine")]
calls += [patched(1, 2, 3, 4, 5, None), patched(1, 2, 3, storage_key=5, write_item=4, serialization_format="mine")]
calls += [patched(1, 2, 3, 4, 5), patched(1, 2, 3, 4, storage_key=5)]
print(json.dumps(calls))
"""
    done = python("-c", script, overlays=[megatron_core("0.12.1")], check=0)

    assert json.loads(done.stdout) == ["mine", "mine", None, "mine", "TORCH_SAVE", "TORCH_SAVE"]


@pytest.mark.real
@pytest.mark.parametrize("version", ["0.12.0", "0.12.1", "0.12.2", "0.12.3"])
def test_a_checkpoint_comes_back_equal(reproduce, version):
    assert reproduce(version, ID, check=0) == dict.fromkeys(MODES, EQUAL)


@pytest.mark.real
@pytest.mark.parametrize("version", ["0.12.0", "0.12.1", "0.12.2", "0.12.3"])
def test_without_us_saving_fails(reproduce, version):
    assert reproduce(version, ID, check=1, MCORE_AUTOPATCH=0) == dict.fromkeys(MODES, ERROR)


@pytest.mark.real
@pytest.mark.parametrize(("switch", "exit_code", "result"), [("1", 0, EQUAL), ("0", 1, ERROR)])
def test_two_ranks_under_torchrun(reproduce, torchrun, switch, exit_code, result):
    results = reproduce("0.12.1", ID, launcher=torchrun, check=exit_code, MCORE_AUTOPATCH=switch)

    assert results == dict.fromkeys(MODES, result)
