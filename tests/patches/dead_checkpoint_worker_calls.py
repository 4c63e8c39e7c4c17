"""What a trainer and its persistent worker go through, each check with a worker of its own.

Every function here is one check; all are run, and what failed is printed as JSON, name -> traceback.
"""

import functools
import json
import logging
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

from megatron.core.dist_checkpointing.strategies import async_utils

from mcore_autopatch.reproductions import _checkpoint, _cpu

FINALIZED = []


class Trainer:
    """A queue of asynchronous calls, each with a function that notes down when it is finalized."""

    def __init__(self):
        FINALIZED.clear()
        self.queue = async_utils.AsyncCallsQueue(persistent=True)

    def schedule(self, work, *args, preload=True):
        preload = functools.partial(int, 0) if preload else None
        request = async_utils.AsyncRequest(work, (0, 0, *args), [], {}, preload)
        request.add_finalize_fn(functools.partial(FINALIZED.append, self.queue.call_idx + 1))
        self.queue.schedule_async_request(request)

    @property
    def worker(self):
        return _checkpoint.persistent_caller(self.queue).process

    @property
    def ends(self):
        caller = _checkpoint.persistent_caller(self.queue)
        prefix = "_persistent_" if hasattr(caller, "_persistent_queue") else ""
        return [getattr(caller, prefix + name) for name in ("queue", "preload_q", "comp_q")]

    def kill(self):
        self.worker.kill()
        self.worker.join()


def work(_rank, _data, path=None, seconds=0):
    time.sleep(seconds)
    if path:
        Path(path).touch()


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def told(function, *args, **kwargs):
    """Return what the trainer is told."""
    started = time.monotonic()
    try:
        function(*args, **kwargs)
    except RuntimeError as error:
        assert time.monotonic() < started + 10, "too late"
        return str(error)
    raise AssertionError("not told")


def check_polling_tells_of_lost_calls_and_they_are_never_finalized(trainer):
    finalize = trainer.queue.maybe_finalize_async_calls
    trainer.schedule(work)
    assert finalize(blocking=True) == [0]
    trainer.schedule(die)
    trainer.schedule(work, preload=False)
    pid = trainer.worker.pid

    def poll():
        while not finalize(blocking=False, no_dist=True):
            time.sleep(0.01)

    assert told(poll) == (
        f"the checkpoint worker (pid {pid}) has ended with exit code -9 (SIGKILL); "
        "every save that it had not finished is lost"
    )
    assert trainer.queue.get_num_unfinalized_calls() == 0
    assert finalize(blocking=True) == []
    told(trainer.schedule, work)
    trainer.queue.close()
    trainer.queue.close()
    assert FINALIZED == [0]


def check_a_call_that_was_done_before_the_worker_died_is_finalized(trainer):
    trainer.schedule(work)
    trainer.schedule(work, None, 60)
    while trainer.ends[2].empty():
        time.sleep(0.01)
    trainer.kill()
    told(trainer.schedule, work)
    # It has been told above, so that close() does what is left to do.
    trainer.queue.close()
    assert FINALIZED == [0]


def check_close_tells_once(trainer):
    trainer.schedule(work, None, 60)
    trainer.kill()
    told(trainer.queue.close)
    trainer.queue.close()
    assert FINALIZED == []


def check_close_only_warns_of_a_worker_that_had_nothing_to_do(trainer):
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    logger = logging.getLogger("mcore_autopatch")
    logger.addHandler(handler)
    trainer.schedule(work)
    trainer.queue.maybe_finalize_async_calls(blocking=True)
    trainer.kill()
    trainer.queue.close()
    logger.removeHandler(handler)
    assert [(record.levelname, "exit code -9" in record.getMessage()) for record in records] == [("WARNING", True)]


def check_a_worker_that_is_stopped_is_waited_for(trainer):
    trainer.schedule(work)
    pid = trainer.worker.pid
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(2, os.kill, (pid, signal.SIGCONT)).start()
    started = time.monotonic()
    trainer.schedule(work, None, 1)
    assert time.monotonic() > started + 1
    assert trainer.queue.maybe_finalize_async_calls(blocking=True) == [0, 1]
    trainer.queue.close()


def check_requests_that_cannot_be_sent_do_not_disturb_the_others(trainer):
    finalize = trainer.queue.maybe_finalize_async_calls
    trainer.schedule(work, None, 1)
    trainer.schedule(lambda: None, preload=False)
    assert "annot be sent" in told(trainer.schedule, lambda: None)
    trainer.schedule(work, preload=False)
    message = told(finalize, blocking=True)
    assert message.startswith(f"save 1 cannot be sent to the checkpoint worker (pid {trainer.worker.pid}): "), message
    assert "lambda" in message
    assert finalize(blocking=True) == [0, 3]
    process = trainer.worker
    trainer.queue.close()
    assert process.exitcode == 0
    assert FINALIZED == [0, 3]


def check_closing_and_starting_again(trainer):
    for _ in range(2):
        trainer.schedule(work)
        process, ends = trainer.worker, trainer.ends
        trainer.queue.close()
        assert process.exitcode == 0
        for end in ends:
            assert not {"join", "get_nowait", "_mcore_autopatch"} & set(vars(end))
    assert len(FINALIZED) == 2


def check_a_trainer_that_is_let_go_ends_its_worker(trainer):
    trainer.schedule(work)
    process = trainer.worker
    trainer.queue.async_calls.clear()
    # From 0.17 on the caller belongs to the class. Nothing else may refer to it, and it need not be collected.
    for owner in (trainer.queue, async_utils.AsyncCallsQueue):
        for name in {"persistent_caller", "_persistent_caller"} & set(vars(owner)):
            setattr(owner, name, None)
    assert process.exitcode == 0


def check_the_error_can_be_sent_to_where_this_package_is_missing(_):
    from mcore_autopatch.patches.dead_checkpoint_worker import CheckpointWorkerError

    error = pickle.loads(pickle.dumps(CheckpointWorkerError("text")))
    assert (type(error), error.args) == (RuntimeError, ("text",))


def main():
    _cpu.start()
    checks = {name.removeprefix("check_"): check for name, check in globals().items() if name.startswith("check_")}
    wanted = sys.argv[1:] or checks
    failed = {}
    for name in wanted:
        trainer = Trainer()
        try:
            with _checkpoint.ended(trainer.queue), _checkpoint.no_endless_wait(trainer.queue, limit=60):
                checks[name](trainer)
        except Exception:
            failed[name] = traceback.format_exc()
            sys.stderr.write(failed[name])
    print(json.dumps({"checks": len(wanted), "failed": failed}))


if __name__ == "__main__":
    main()
