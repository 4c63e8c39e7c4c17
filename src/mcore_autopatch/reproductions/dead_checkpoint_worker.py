"""The trainer is told when its persistent checkpoint worker is dead, or has not got the request."""

import contextlib
import functools
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mcore_autopatch.reproductions import _checkpoint, _cpu


def _write(path: str, text: str) -> None:
    Path(path).write_text(text, encoding="utf-8")


def _write_slowly(path: str, text: str) -> None:
    time.sleep(3)
    _write(path, text)


def _preload_slowly(text: str) -> str:
    time.sleep(3)
    return text


def _die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class _Unpicklable:
    def __reduce__(self) -> str:
        raise TypeError("this cannot be pickled")


class _Trainer:
    """A queue of asynchronous calls with a persistent worker, which are to write a text into a file."""

    def __init__(self, path: str) -> None:
        from megatron.core.dist_checkpointing.strategies import async_utils

        self._request = async_utils.AsyncRequest
        self._path = path
        self.queue = async_utils.AsyncCallsQueue(persistent=True)

    def schedule(self, work: Callable[..., None], preload: Callable[..., Any] | None, text: Any = "text") -> None:
        self.queue.schedule_async_request(self._request(work, (self._path, text), [], {}, preload))

    def finalize(self) -> None:
        self.queue.maybe_finalize_async_calls(blocking=True)

    def save(
        self, work: Callable[..., None] = _write, preload: Callable[..., Any] | None = None, text: str = "text"
    ) -> None:
        self.schedule(work, preload or functools.partial(str, text), text)
        self.finalize()
        if Path(self._path).read_text(encoding="utf-8") != text:
            raise ValueError("the file is not what was saved")

    @property
    def worker(self) -> Any:
        return _checkpoint.persistent_caller(self.queue).process

    @contextlib.contextmanager
    def told(self, *texts: str) -> Iterator[None]:
        """Expect a RuntimeError with all of ``texts`` in its message, within 10 seconds."""
        started = time.monotonic()
        try:
            yield
        except RuntimeError as error:
            if not all(text in str(error) for text in texts):
                raise
        else:
            raise ValueError("the trainer has not been told")
        if time.monotonic() > started + 10:
            raise ValueError("the trainer has been told too late")


@contextlib.contextmanager
def _trainer() -> Iterator[_Trainer]:
    """Make a trainer whose close() has to return in the end, and leave no process and no file behind."""
    _cpu.start()
    with tempfile.TemporaryDirectory(prefix="mcore-autopatch-") as folder:
        trainer = _Trainer(os.path.join(folder, "saved"))  # noqa: PTH118
        with _checkpoint.ended(trainer.queue), _checkpoint.no_endless_wait(trainer.queue):
            yield trainer
            trainer.queue.close()


def _case(function: Callable[[_Trainer], str]) -> Callable[[], str]:
    def case() -> str:
        if not _checkpoint.has_persistent_worker():
            return "this megatron-core has no persistent worker"
        with _trainer() as trainer:
            return function(trainer)

    return case


def _before(trainer: _Trainer) -> str:
    trainer.save()
    pid = trainer.worker.pid
    trainer.worker.kill()
    trainer.worker.join()
    with trainer.told(f"pid {pid}", "exit code -9"):
        trainer.save()
    trainer.queue.close()
    trainer.save(text="saved by another one")
    return "told of a worker that was killed before the save"


def _preload(trainer: _Trainer) -> str:
    trainer.save()  # so that the time it takes to start a worker does not count
    with trainer.told("pid ", "exit code -9"):
        trainer.schedule(_write, _die)
    return "told of a worker that was killed while it copied"


def _save(trainer: _Trainer) -> str:
    trainer.schedule(_die, functools.partial(str, "text"))
    pid = trainer.worker.pid
    with trainer.told(f"pid {pid}", "exit code -9"):
        trainer.finalize()
    return "told of a worker that was killed while it wrote"


def _pickle(trainer: _Trainer) -> str:
    trainer.save()
    for preload in (functools.partial(str, "text"), None):
        with (
            _checkpoint.no_endless_wait(trainer.queue, limit=10),
            trainer.told(f"pid {trainer.worker.pid}", "TypeError: this cannot be pickled"),
        ):
            trainer.schedule(_write, preload, _Unpicklable())
            trainer.finalize()
    trainer.save(text="saved by the same one")
    return "told of requests that were not sent"


def _slow(trainer: _Trainer) -> str:
    trainer.save(_write_slowly, functools.partial(_preload_slowly, "slow"), "slow")
    return "a slow worker is waited for"


#: Killed before a save, while it copies the tensors, while it writes; a request that does not arrive; and a slow one.
CASES: dict[str, Callable[[], str]] = {
    name: _case(function)
    for name, function in {
        "before": _before,
        "preload": _preload,
        "save": _save,
        "pickle": _pickle,
        "slow": _slow,
    }.items()
}
