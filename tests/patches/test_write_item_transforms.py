"""write-item-transforms: megatron-core up to 0.11 writes checkpoints with torch 2.7 and later."""

import json
from types import SimpleNamespace

import pytest

from mcore_autopatch.patches import write_item_transforms

ID = "write-item-transforms"
ERROR = (
    "RuntimeError: Worker failure: _write_item() missing 2 required positional arguments: "
    "'storage_key' and 'serialization_format'"
)
EQUAL = "checkpoint read back equal, 7 entries"
#: 0.8.0 has the bug too; it does not import without an old setuptools.
EXPECTED = {
    "0.9.0": "APPLIED",
    "0.10.0": "APPLIED",
    "0.11.0": "APPLIED",
    "0.12.0": "SKIPPED MEGATRON_VERSION",
    "0.12.3": "SKIPPED MEGATRON_VERSION",
    "0.16.1": "SKIPPED MEGATRON_VERSION",
}


def write_item_of_torch_2_6(stream, data, write_item, storage_key): ...
def write_item_of_torch_2_7(transforms, stream, data, write_item, storage_key): ...


class WriterOf011:
    def write(self, stream, data, write_item, storage_key):
        write_item_of_torch_2_7(transforms=None, stream=stream)
        return _write_item(stream, data, write_item, storage_key)  # noqa: F821


class WriterOf012:
    def write(self, stream, data, write_item, storage_key):
        transform_list = [self.transforms]
        return _write_item(*transform_list, stream, data, write_item, storage_key)  # noqa: F821


@pytest.mark.parametrize(
    ("write_item", "writer"), [(write_item_of_torch_2_6, WriterOf011), (write_item_of_torch_2_7, WriterOf012)]
)
def test_does_nothing_where_transforms_are_not_asked_for_or_passed_already(write_item, writer):
    assert not write_item_transforms.probe(SimpleNamespace(_write_item=write_item, FileSystemWriterAsync=writer))


def test_sees_the_bug_in_the_code():
    module = SimpleNamespace(_write_item=write_item_of_torch_2_7, FileSystemWriterAsync=WriterOf011)

    assert write_item_transforms.probe(module)


@pytest.mark.real
def test_the_probe_has_the_last_word_on_a_forced_patch(outcome):
    assert outcome("0.12.0", ID, MCORE_AUTOPATCH_FORCE=ID) == ("SKIPPED", "BUG_ABSENT")


@pytest.mark.real
def test_what_is_missing_is_filled_in_and_what_is_passed_is_obeyed(python, megatron_core):
    script = """
import json
from torch.distributed.checkpoint import filesystem
class Mine(filesystem._StorageWriterTransforms): pass
def with_format(transforms, stream, data, write_item, storage_key, serialization_format):
    return [type(transforms).__name__, stream, data, write_item, storage_key, str(serialization_format)]
def without_format(transforms, stream, data, write_item, storage_key):
    return [type(transforms).__name__, stream, data, write_item, storage_key]
from mcore_autopatch.patches.write_item_transforms import without_transforms
old, new, mine = without_transforms(without_format), without_transforms(with_format), Mine()
print(json.dumps([
    old(1, 2, 3, 4),
    old(mine, 1, 2, 3, 4),
    new(1, 2, 3, storage_key=4),
    new(stream=1, data=2, write_item=3, storage_key=4, transforms=mine),
    new(1, 2, 3, 4, serialization_format="mine"),
    new(mine, 1, 2, 3, 4, "mine"),
]))
"""
    done = python("-c", script, overlays=[megatron_core("0.11.0")], check=0)

    nothing, torch_save = "_StorageWriterTransforms", "SerializationFormat.TORCH_SAVE"
    assert json.loads(done.stdout) == [
        [nothing, 1, 2, 3, 4],
        ["Mine", 1, 2, 3, 4],
        [nothing, 1, 2, 3, 4, torch_save],
        ["Mine", 1, 2, 3, 4, torch_save],
        [nothing, 1, 2, 3, 4, "mine"],
        ["Mine", 1, 2, 3, 4, "mine"],
    ]


@pytest.mark.real
@pytest.mark.parametrize("version", ["0.9.0", "0.11.0"])
def test_a_checkpoint_comes_back_equal(reproduce, version):
    assert reproduce(version, ID, check=0) == {"sync": EQUAL, "async": EQUAL}


@pytest.mark.real
@pytest.mark.parametrize("version", ["0.9.0", "0.11.0"])
def test_without_us_saving_fails(reproduce, version):
    assert reproduce(version, ID, check=1, MCORE_AUTOPATCH=0) == {"sync": ERROR, "async": ERROR}


@pytest.mark.real
def test_two_ranks_under_torchrun(reproduce, torchrun):
    assert reproduce("0.11.0", ID, launcher=torchrun, check=0) == {"sync": EQUAL, "async": EQUAL}
