"""dead-checkpoint-worker: the trainer is told when its persistent worker is gone, and waits for one that is not."""

import functools
import importlib.util
import json
import multiprocessing
import queue
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from mcore_autopatch.patches import dead_checkpoint_worker as subject

ID = "dead-checkpoint-worker"
CALLS = Path(__file__).with_name("dead_checkpoint_worker_calls.py")
OLDEST = "0.12.0"
#: From 0.18 on megatron-core does not import without triton, which the CPU build of torch does not bring. The caller
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
TOLD = {
    "before": "told of a worker that was killed before the save",
    "preload": "told of a worker that was killed while it copied",
    "save": "told of a worker that was killed while it wrote",
    "pickle": "told of requests that were not sent",
    "slow": "a slow worker is waited for",
}
WAITS = "TimeoutError: the trainer still waits for its checkpoint worker, which has ended with exit code -9"
#: From 0.16 on the worker needs it where there is no CUDA device.
STARTS = "persistent-worker-without-cuda"


class Waiting:
    def schedule_async_call(self, async_req):
        self.preload_q.join()

    def is_current_async_call_done(self):
        self.cur_item = self.comp_q.get_nowait()


class Asking(Waiting):
    def is_current_async_call_done(self):
        if self.process.is_alive():
            self.cur_item = self.comp_q.get_nowait()


class Bounded(Waiting):
    def schedule_async_call(self, async_req):
        self.preload_q.get(timeout=1)


@pytest.mark.parametrize("caller", [Asking, Bounded])
def test_does_nothing_where_the_worker_is_asked_for_or_the_wait_is_another_one(caller):
    assert not subject.probe(SimpleNamespace(PersistentAsyncCaller=caller))


def test_sees_the_bug_in_the_code():
    assert subject.probe(SimpleNamespace(PersistentAsyncCaller=Waiting))


@pytest.fixture
def watched():
    """Return a watch over real queues, and a process whose exit code the test sets."""
    context = multiprocessing.get_context("spawn")
    ends = context.JoinableQueue(), context.JoinableQueue(), context.Queue()
    watch = subject._Watch(*ends)
    watch.process = SimpleNamespace(pid=123, exitcode=None)
    watch.begin()
    yield (watch, *ends)
    for end in ends:
        end.cancel_join_thread()
        end.close()


def test_a_worker_that_is_alive_is_waited_for_and_its_answer_wakes_at_once(watched, monkeypatch):
    looks = []
    watch, _, preloads, _ = watched
    monkeypatch.setattr(watch, "gone", functools.partial(looks.append, 1))
    monkeypatch.setattr(subject, "_INTERVAL", 0.001)
    preloads.put(0)
    threading.Timer(0.5, preloads.task_done).start()
    preloads.join()
    assert len(looks) > 50

    monkeypatch.setattr(subject, "_INTERVAL", 60)
    preloads.put(0)
    threading.Timer(0.1, preloads.task_done).start()
    started = time.monotonic()
    preloads.join()
    assert time.monotonic() < started + 30


def test_nothing_to_wait_for_is_no_reason_to_ask(watched):
    watch, requests, preloads, _ = watched
    watch.process.exitcode = 0
    requests.join()
    preloads.join()
    assert not watch.told


@pytest.mark.parametrize(("code", "text"), [(1, "1;"), (-9, "-9 (SIGKILL);"), (-64, "-64"), (0, "0;")])
def test_the_exit_code_is_told(watched, code, text):
    watch, requests, _, _ = watched
    requests.put(0)
    threading.Timer(0.1, watch.process.__setattr__, ("exitcode", code)).start()
    with pytest.raises(RuntimeError, match=r"\(pid 123\) has ended with exit code ") as caught:
        requests.join()
    assert f"exit code {text}" in str(caught.value)
    assert caught.value.call is None


def test_what_the_worker_did_before_it_ended_counts(watched):
    watch, _, _, completed = watched
    with pytest.raises(queue.Empty):
        completed.get_nowait()
    completed.put(7)
    while completed.empty():
        time.sleep(0.01)
    watch.process.exitcode = -9
    assert completed.get_nowait() == 7
    with pytest.raises(RuntimeError, match="exit code -9"):
        completed.get_nowait()


def test_a_worker_that_died_with_the_lock(watched):
    watch, _, preloads, _ = watched
    preloads.put(0)
    locked = threading.Event()

    def take_the_lock():
        preloads._cond.acquire()
        locked.set()

    # The lock knows its owner by the thread.
    threading.Thread(target=take_the_lock).start()
    locked.wait()
    watch.process.exitcode = -9
    with pytest.raises(RuntimeError, match="exit code -9"):
        preloads.join()


@pytest.mark.real
@pytest.mark.parametrize(("version", "cases"), [(OLDEST, TOLD), ("0.16.1", ["before"]), (NEWEST, TOLD)])
def test_the_trainer_is_told(reproduce, version, cases):
    assert reproduce(version, ID, *cases, check=0) == {case: TOLD[case] for case in cases}


@pytest.mark.real
@pytest.mark.parametrize(
    ("version", "cases"), [(OLDEST, ["before", "pickle", "slow"]), (NEWEST, ["preload", "save", "pickle"])]
)
def test_without_us_it_waits_without_end(reproduce, version, cases):
    results = reproduce(version, ID, *cases, check=1, MCORE_AUTOPATCH_ONLY=STARTS)

    idle = "TimeoutError: the trainer still waits for its checkpoint worker, which has nothing to do"
    expected = {**dict.fromkeys(TOLD, WAITS), "pickle": idle, "slow": TOLD["slow"]}
    assert results == {case: expected[case] for case in cases}


@pytest.mark.real
def test_a_worker_that_does_not_even_start_is_told_of(reproduce):
    results = reproduce("0.16.0", STARTS, "persistent", check=1, MCORE_AUTOPATCH_ONLY=ID)

    assert results["persistent"].startswith("CheckpointWorkerError: the checkpoint worker (pid ")
    assert "exit code 1;" in results["persistent"]


@pytest.mark.real
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_what_a_trainer_goes_through(python, megatron_core, version):
    done = python(CALLS, overlays=[megatron_core(version)], check=0)

    assert json.loads(done.stdout.splitlines()[-1]) == {"checks": 9, "failed": {}}


EXIT = """
import functools, os, signal, threading, time
from mcore_autopatch.reproductions import _checkpoint, _cpu

if __name__ == "__main__":
    _cpu.start()
    from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue, AsyncRequest
    queue = AsyncCallsQueue(persistent=True)
    queue.schedule_async_request(AsyncRequest(time.sleep, (0,), [], {}, None))
    queue.maybe_finalize_async_calls(blocking=True)
    pid = _checkpoint.persistent_caller(queue).process.pid
    os.kill(pid, signal.SIGSTOP)
    # More than a pipe takes, so that the thread that feeds it will never be done.
    queue.schedule_async_request(AsyncRequest(time.sleep, ("x" * 1_000_000,), [], {}, None))
    threading.Timer(1, os.kill, (pid, signal.SIGKILL)).start()
    queue.maybe_finalize_async_calls(blocking=True)
"""


@pytest.mark.real
def test_a_trainer_that_ends_with_the_error_does_end(python, megatron_core, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(EXIT)
    done = python(script, overlays=[megatron_core(NEWEST)], check=1, timeout=120)

    assert "CheckpointWorkerError: the checkpoint worker (pid " in done.stderr
