"""preload-without-cuda: the checkpoint writer copies tensors to the host where there is no CUDA device."""

import importlib.util
import json
from types import SimpleNamespace

import pytest

from mcore_autopatch.patches import preload_without_cuda

ID = "preload-without-cuda"
OLDEST = "0.12.0"
#: From 0.18 on megatron-core does not import without triton, which the CPU build of torch does not bring. The function
#: has not changed since 0.17.
NEWEST = "0.19.2" if importlib.util.find_spec("triton") else "0.17.0"
EXPECTED = {
    "0.10.0": "SKIPPED MEGATRON_VERSION",
    "0.11.0": "SKIPPED MEGATRON_VERSION",
    "0.12.0": "APPLIED",
    "0.12.1": "APPLIED",
    "0.12.2": "APPLIED",
    "0.12.3": "APPLIED",
    "0.13.0": "APPLIED",
    "0.13.1": "APPLIED",
    "0.14.0": "APPLIED",
    "0.15.0": "APPLIED",
    "0.15.1": "APPLIED",
    "0.15.2": "APPLIED",
    "0.15.3": "APPLIED",
    "0.16.0": "APPLIED",
    "0.16.1": "APPLIED",
    "0.17.0": "APPLIED",
    "0.17.1": "APPLIED",
    "0.18.0": "APPLIED",
    "0.18.1": "APPLIED",
    "0.18.2": "APPLIED",
    "0.19.0": "APPLIED",
    "0.19.1": "APPLIED",
    "0.19.2": "APPLIED",
}


class Asking:
    @staticmethod
    def preload_tensors(write_buckets, non_blocking=True):
        if non_blocking and torch.cuda.is_available():  # noqa: F821
            torch.cuda.synchronize()  # noqa: F821
        return write_buckets


class Waiting:
    @staticmethod
    def preload_tensors(write_buckets, non_blocking=True):
        if non_blocking:
            torch.cuda.synchronize()  # noqa: F821
        return write_buckets


def test_does_nothing_where_the_device_is_asked_for():
    assert not preload_without_cuda.probe(SimpleNamespace(FileSystemWriterAsync=Asking))


def test_sees_the_bug_in_the_code():
    assert preload_without_cuda.probe(SimpleNamespace(FileSystemWriterAsync=Waiting))


@pytest.mark.real
def test_how_it_is_copied(python, megatron_core):
    script = """
import json, pickle, torch
from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync
preload, calls = FileSystemWriterAsync.preload_tensors, []

class Tensor:
    def to(self, device, non_blocking):
        calls.append([device, non_blocking])
        return self

def copy(*args, **kwargs):
    tensor = Tensor()
    ((name, key, (data, copied)),) = preload([("file", "key", (["bytes"], [("item", tensor)]))], *args, **kwargs)
    assert (name, key, data, copied) == ("file", "key", ["bytes"], [("item", tensor)])

copy(), copy(True), copy(non_blocking=True), copy(False)
torch.cuda.is_available, torch.cuda.synchronize = lambda: True, lambda: calls.append("wait")
copy(), copy(False)
assert pickle.loads(pickle.dumps(preload)) is preload
try:
    torch.cuda.is_available = lambda: False
    preload()
except TypeError as error:
    print(json.dumps([calls, str(error)]))
"""
    done = python("-c", script, overlays=[megatron_core(OLDEST)], check=0)

    calls, error = json.loads(done.stdout)
    assert calls == [*[["cpu", False]] * 4, ["cpu", True], "wait", ["cpu", False]]
    assert error == "FileSystemWriterAsync.preload_tensors() missing 1 required positional argument: 'write_buckets'"


@pytest.mark.real
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_a_worker_without_stand_ins_writes_a_checkpoint(reproduce, version):
    results = reproduce(version, ID, check=0)

    assert results == {"preload": "a tensor is copied", "persistent": "checkpoint read back equal, 7 entries"}


@pytest.mark.real
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_without_us_it_dies(reproduce, version):
    results = reproduce(version, ID, check=1, MCORE_AUTOPATCH=0)

    assert results["preload"].startswith(
        ("AssertionError: Torch not compiled with CUDA", "RuntimeError: Found no NVIDIA")
    )
    assert results["persistent"] == (
        "TimeoutError: the trainer still waits for its checkpoint worker, which has ended with exit code 1"
    )
