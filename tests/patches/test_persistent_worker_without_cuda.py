"""persistent-worker-without-cuda: the persistent checkpoint worker starts where there is no CUDA device.

tests/ascend/test_persistent_worker.py has the same on an NPU.
"""

import importlib.util
import json
from types import SimpleNamespace

import pytest

from mcore_autopatch.patches import persistent_worker_without_cuda

ID = "persistent-worker-without-cuda"
OLDEST = "0.16.0"
#: From 0.18 on megatron-core does not import without triton, which the CPU build of torch does not bring. The worker
#: has not changed since 0.17.
NEWEST = "0.19.2" if importlib.util.find_spec("triton") else "0.17.0"
EXPECTED = {
    "0.12.0": "SKIPPED MEGATRON_VERSION",
    "0.14.0": "SKIPPED MEGATRON_VERSION",
    "0.15.3": "SKIPPED MEGATRON_VERSION",
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


class Guarded:
    @staticmethod
    def async_loop(rank, queue):
        if torch.cuda.is_available():  # noqa: F821
            torch.cuda.set_device(rank % torch.cuda.device_count())  # noqa: F821
        queue.get()


class Without:
    @staticmethod
    def async_loop(rank, queue):
        queue.get()


class Affected:
    @staticmethod
    def async_loop(rank, queue):
        torch.cuda.set_device(rank % torch.cuda.device_count())  # noqa: F821
        queue.get()


@pytest.mark.parametrize("caller", [Guarded, Without])
def test_does_nothing_where_the_device_is_asked_for_or_left_alone(caller):
    assert not persistent_worker_without_cuda.probe(SimpleNamespace(PersistentAsyncCaller=caller))


def test_sees_the_bug_in_the_code():
    assert persistent_worker_without_cuda.probe(SimpleNamespace(PersistentAsyncCaller=Affected))


@pytest.mark.real
def test_the_probe_has_the_last_word_on_a_forced_patch(outcome):
    assert outcome("0.15.3", ID, MCORE_AUTOPATCH_FORCE=ID) == ("SKIPPED", "BUG_ABSENT")


@pytest.mark.real
def test_what_is_selected_and_what_the_worker_sees(python, megatron_core):
    script = """
import json, pickle, queue
from types import SimpleNamespace
import torch
from megatron.core.dist_checkpointing.strategies import async_utils
Caller, AsyncRequest = async_utils.PersistentAsyncCaller, async_utils.AsyncRequest

def work(rank):
    seen, calls = [], []
    request = AsyncRequest(lambda: seen.append(async_utils.torch is torch), (), [])
    requests = queue.Queue()
    requests.put(request)
    requests.put("DONE")
    before = dict(vars(torch.cuda))
    Caller.async_loop(rank, requests, queue.Queue(), queue.Queue())
    assert dict(vars(torch.cuda)) == before and async_utils.torch is torch
    return seen

def devices(count, calls):
    return SimpleNamespace(device_count=lambda: count, set_device=calls.append)

on_cpu = work(5)
npu, cuda = [], []
torch.npu = devices(3, npu)
on_npu = work(5)
torch.npu = devices(0, npu)
work(5)
torch.npu = devices(3, npu)
vars(torch.cuda).update(vars(devices(4, cuda)))
on_cuda = work(5)
assert pickle.loads(pickle.dumps(Caller.async_loop)) is Caller.async_loop

# Whatever ends the loop, its module has torch back.
vars(torch.cuda).update(vars(devices(0, cuda)))
torch.npu = devices(0, npu)
try:
    Caller.async_loop(0, None, None, None)
except AttributeError:
    assert async_utils.torch is torch
print(json.dumps([on_cpu, on_npu, npu, on_cuda, cuda]))
"""
    done = python("-c", script, overlays=[megatron_core(OLDEST)], check=0)

    assert json.loads(done.stdout) == [[True], [True], [5 % 3], [True], [5 % 4]]


@pytest.mark.real
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_a_checkpoint_comes_back_equal(reproduce, version):
    results = reproduce(version, ID, check=0)

    assert results == {"loop": "the worker starts and ends", "persistent": "checkpoint read back equal, 7 entries"}


@pytest.mark.real
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_without_us_the_worker_dies_and_the_trainer_waits(reproduce, version):
    results = reproduce(version, ID, check=1, MCORE_AUTOPATCH=0)

    assert results["loop"] == "ZeroDivisionError: integer modulo by zero"
    assert results["persistent"] == (
        "TimeoutError: the trainer still waits for its checkpoint worker, which has ended with exit code 1"
    )


@pytest.mark.real
def test_a_release_that_selects_no_device_works_either_way(reproduce):
    assert reproduce("0.15.3", ID, check=0, MCORE_AUTOPATCH=0)
