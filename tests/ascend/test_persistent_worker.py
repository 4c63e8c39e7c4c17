"""persistent-worker-without-cuda on Ascend: the worker selects its NPU, in the process that is spawned.

The stand-in driver cannot get torch.npu.set_device to the end, so that it is recorded instead of executed.
"""

import json

import pytest

pytestmark = pytest.mark.real

VERSION = "0.16.1"
TRANSFER = "from torch_npu.contrib import transfer_to_npu"
#: The body of the script is executed again in the worker, before the worker looks for its function.
SCRIPT = """
import json, os, torch
log = os.open("set_device.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
torch.npu.set_device = lambda device: os.write(log, f"{os.getpid()} {device!r}\\n".encode())
TRANSFER
from megatron.core.dist_checkpointing.strategies.async_utils import PersistentAsyncCaller

if __name__ == "__main__":
    context = torch.multiprocessing.get_context("spawn")
    requests, preloads, done = context.JoinableQueue(), context.JoinableQueue(), context.Queue()
    worker = context.Process(target=PersistentAsyncCaller.async_loop, args=(5, requests, preloads, done))
    worker.start()
    requests.put("DONE")
    worker.join()
    requests.cancel_join_thread()
    calls = [line.replace(f"{worker.pid} ", "worker: ") for line in open("set_device.log")]
    print(json.dumps([worker.exitcode, calls]))
"""


@pytest.fixture
def select(npu, python, megatron_core, tmp_path):
    """Return a function: number of NPUs -> exit code of a worker of rank 5, what it selected, stderr."""

    def run(count, before="", **variables):
        script = tmp_path / "script.py"
        script.write_text(SCRIPT.replace("TRANSFER", before))
        done = python(script, check=0, **variables, **npu(count, megatron_core(VERSION)))
        exit_code, calls = json.loads(done.stdout.splitlines()[-1])
        return exit_code, "".join(calls), done.stderr

    return run


# On three NPUs, the one of rank 5 is number 2. With transfer_to_npu the worker selects it through torch.cuda.
@pytest.mark.parametrize("before", ["", TRANSFER])
def test_the_worker_selects_its_npu(select, before):
    assert select(3, before)[:2] == (0, "worker: 2\n")


def test_the_worker_selects_nothing_where_there_is_no_npu(select):
    assert select(0)[:2] == (0, "")


def test_without_us_the_worker_dies(select):
    exit_code, calls, log = select(3, MCORE_AUTOPATCH=0)

    assert (exit_code, calls) == (1, "")
    assert "ZeroDivisionError: integer modulo by zero" in log


def test_without_us_and_with_transfer_to_npu_it_selects_the_same(select):
    assert select(3, TRANSFER, MCORE_AUTOPATCH=0)[:2] == (0, "worker: 2\n")
