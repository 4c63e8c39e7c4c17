"""The trainer waits without end for a persistent checkpoint worker that is dead, or that never got the request."""

import contextlib
import functools
import inspect
import logging
import signal
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any, cast

from mcore_autopatch.declaration import Affected, Patch

#: Seconds between two looks at the worker. What the trainer waits for wakes it at once all the same.
_INTERVAL = 0.2
#: Attribute of the trainer's end of the queue of requests. What is pickled of a queue has no attributes.
_ATTRIBUTE = "_mcore_autopatch"


class CheckpointWorkerError(RuntimeError):
    """A save is lost: its worker is gone, or its request could not be sent."""

    #: Index of the only call that is lost; None where all are that the worker had not finished.
    call: int | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Where it is sent, to a driver of Ray for example, this package may be missing.
        return RuntimeError, self.args


def probe(module: ModuleType) -> bool:
    """Tell whether the trainer waits for the worker in both places, and in neither asks whether it is alive."""
    caller = module.PersistentAsyncCaller
    schedule = inspect.getsource(caller.schedule_async_call)
    finalize = inspect.getsource(caller.is_current_async_call_done)
    waits = "preload_q.join()" in schedule and "comp_q.get_nowait()" in finalize
    return waits and not any(word in schedule + finalize for word in (".is_alive(", ".exitcode", ".sentinel"))


class _Watch:
    """What the trainer knows of its worker. It stays with the trainer's end of the queue of requests."""

    def __init__(self, requests: Any, preloads: Any, completed: Any) -> None:
        self._ends = requests, preloads, completed
        #: Who is scheduling a call at this moment, and the index of the call.
        self.caller: Any = None
        self.call: int | None = None
        self.process: Any = None
        #: Index of the call -> why its request could not be sent.
        self.unsent: dict[int, Exception] = {}
        #: Whether the trainer has been told that the worker is gone.
        self.told = False

    def begin(self) -> None:
        """Let the trainer's ends look after the worker. What is pickled for the worker does not change."""
        requests, preloads, completed = self._ends
        setattr(requests, _ATTRIBUTE, self)
        requests.join = functools.partial(self._join, requests)
        preloads.join = functools.partial(self._join, preloads)
        completed.get_nowait = functools.partial(self._get_nowait, completed)
        if "_on_queue_feeder_error" not in vars(requests):
            # A reference to the queue would keep it from ever being freed, because the thread that feeds it has this.
            report = functools.partial(_note_unsent, weakref.ref(requests), requests._on_queue_feeder_error)
            requests._on_queue_feeder_error = report

    def end(self) -> None:
        """Undo it, so that the ends are freed when their owner lets go of them."""
        requests, preloads, completed = self._ends
        for end, name in ((requests, _ATTRIBUTE), (requests, "join"), (preloads, "join"), (completed, "get_nowait")):
            vars(end).pop(name, None)

    def gone(self) -> bool:
        """Tell whether the worker has ended; one that works, however slowly, has not."""
        if self.caller is not None:
            self.process = self.caller.process
        return self.process is not None and self.process.exitcode is not None

    def loss(self) -> CheckpointWorkerError:
        """Return the error that says what is lost; something must be."""
        if self.gone():
            self.told = True
            for end in self._ends:
                # Nobody reads any more, and this process would wait for that when it ends.
                end.cancel_join_thread()
            code = self.process.exitcode
            name = next((f" ({one.name})" for one in signal.Signals if one == -code), "")
            return CheckpointWorkerError(
                f"the checkpoint worker (pid {self.process.pid}) has ended with exit code {code}{name}; "
                "every save that it had not finished is lost"
            )
        call = self.call if self.call in self.unsent else next(iter(self.unsent))
        cause = self.unsent.pop(call)
        error = CheckpointWorkerError(
            f"save {call} cannot be sent to the checkpoint worker (pid {self.process.pid}): "
            f"{type(cause).__name__}: {cause}"
        )
        error.call, error.__cause__ = call, cause
        return error

    def _join(self, end: Any) -> None:
        """Wait as JoinableQueue.join does, and raise CheckpointWorkerError where that would never end."""
        import queue  # loaded by megatron-core, and not yet when this file is read

        while not end._unfinished_tasks._semlock._is_zero():
            # Asked first, because the worker may end after it has done what is awaited.
            gone = self.gone()
            # What is awaited wakes the wait at once. A worker that died while it had the lock will not release it.
            if end._cond.acquire(timeout=_INTERVAL):
                try:
                    if not end._unfinished_tasks._semlock._is_zero():
                        end._cond.wait(_INTERVAL)
                finally:
                    end._cond.release()
            if end._unfinished_tasks._semlock._is_zero():
                return
            if self.call in self.unsent:
                # The worker has not been told of this preload, so that nobody may wait for it.
                with contextlib.suppress(queue.Empty):
                    end.get(timeout=10)
                    end.task_done()
                raise self.loss()
            if gone:
                raise self.loss()

    def _get_nowait(self, end: Any) -> Any:
        """Return what the worker has put, or else raise CheckpointWorkerError where it will never put anything."""
        import queue

        gone = self.gone()
        try:
            return type(end).get_nowait(end)
        except queue.Empty:
            if not gone and not self.unsent:
                raise
        raise self.loss()


def _note_unsent(
    reference: "weakref.ref[Any]", report: Callable[..., object], error: Exception, request: object
) -> None:
    """Remember that a request has been dropped. Runs in the thread that feeds the queue."""
    report(error, request)
    requests, call = reference(), getattr(request, "call_idx", None)
    watch = getattr(requests, _ATTRIBUTE, None)
    if watch is not None and requests is not None and call is not None:
        # close() waits for as many requests as have been put.
        requests.task_done()
        watch.unsent[call] = error


def _ends(caller: Any) -> list[Any]:
    """Return the trainer's ends of the queues: of requests, of preloads that are due, and of completed calls."""
    # From 0.17 on they belong to the class, and there are none while there is no process.
    prefix = "_persistent_" if hasattr(caller, "_persistent_queue") else ""
    return [getattr(caller, f"{prefix}{name}", None) for name in ("queue", "preload_q", "comp_q")]


def _watch(caller: Any) -> _Watch | None:
    watch: _Watch | None = getattr(_ends(caller)[0], _ATTRIBUTE, None)
    return watch


def with_an_eye_on_the_worker(original: Callable[..., Any]) -> Callable[..., Any]:
    """Raise CheckpointWorkerError, a RuntimeError, when the worker is gone or cannot be sent the request.

    From then on, finalizing a call that the worker will never complete raises it too. A worker whose process exists
    is waited for, without a limit.
    """
    namespace: dict[str, Any] = original.__globals__

    def schedule_async_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        request = args[0] if args else kwargs.get("async_req")
        if getattr(request, "async_fn", None) is None:
            return original(self, *args, **kwargs)
        if self.process is None and hasattr(self, "_get_process"):
            # From 0.17 on this makes the queues; the original would do it next.
            self.process = namespace["PersistentAsyncCaller"]._get_process(namespace["torch"].distributed.get_rank())
        watch = _watch(self)
        if watch is None:
            watch = _Watch(*_ends(self))
            watch.begin()
        watch.caller, watch.call = self, cast("Any", request).call_idx
        try:
            if watch.gone():
                raise watch.loss()
            return original(self, *args, **kwargs)
        finally:
            watch.process = self.process
            watch.caller = watch.call = None

    return schedule_async_call


def without_a_worker_that_is_gone(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return from close() when the worker is gone, ready to start another one; warn if nobody has been told of it."""
    can_abort = "abort" in inspect.signature(original).parameters
    namespace: dict[str, Any] = original.__globals__

    def close(self: Any, *args: Any, **kwargs: Any) -> Any:
        watch = _watch(self)
        if watch is None:
            return original(self, *args, **kwargs)
        told = watch.told
        try:
            result = original(self, *args, **kwargs)
        except CheckpointWorkerError as error:
            if not told:
                logging.getLogger(__name__).warning("%s", error)
            # The queues hold what nobody has read, and locks that nobody will release.
            if can_abort:
                original(self, abort=True)
            self.process = result = None
            namespace["PersistentAsyncCaller"].__init__(self)
        watch.end()
        return result

    return close


def without_lost_calls(original: Callable[..., Any]) -> Callable[..., Any]:
    """Take the calls out that are lost, once the error has said so: they must never be finalized."""

    def maybe_finalize_async_calls(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        except CheckpointWorkerError as error:
            # The worker takes calls in their order, so that none after a lost one is done.
            kept = [call for call in self.async_calls if error.call not in (None, call.idx)]
            self.async_calls.clear()
            self.async_calls.extend(kept)
            raise

    return maybe_finalize_async_calls


def without_the_same_error_again(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return from close() when the trainer has been told before that the worker of its last calls is gone."""

    def close(self: Any, *args: Any, **kwargs: Any) -> Any:
        watches = [_watch(call.async_caller) for call in self.async_calls]
        told = any(watch.told for watch in watches if watch is not None)
        try:
            return original(self, *args, **kwargs)
        except CheckpointWorkerError:
            if not told:
                raise
            return original(self, *args, **kwargs)

    return close


patch = Patch(
    title="the trainer waits without end for a checkpoint worker that is dead",
    symptom=(
        "With AsyncCallsQueue(persistent=True), a save or its finalization never returns after the worker has been "
        "killed, for want of memory for example, or has ended with an error: the trainer stays in preload_q.join() or "
        "asks comp_q again and again. The same happens when the request cannot be pickled, as with MindSpeed's adaptor "
        "for 0.12.1: a thread prints the error and drops the request."
    ),
    errors=(
        (
            "_pickle.PicklingError: Can't pickle <function preload_tensors at 0x…>: it's not the same object as "
            "mindspeed.core.megatron_basic.megatron_basic.preload_tensors"
        ),
    ),
    cause=(
        "schedule_async_call and close wait in join() of a queue, and is_current_async_call_done polls another one, "
        "without asking whether the process at the other end is there or has been sent anything."
    ),
    effect=(
        "On the rank concerned, the save or the next look at whether it is done ends with a RuntimeError that names "
        "the worker's pid and exit code, or the error of pickling. After it close() returns, and a new worker can be "
        "started. What is lost is never finalized. A worker that is alive is waited for, however slow; what it is sent "
        "does not change."
    ),
    upstream="https://github.com/NVIDIA/Megatron-LM/issues/6970",
    target="megatron.core.dist_checkpointing.strategies.async_utils",
    affected=(Affected(megatron_core=">=0.12,<0.20", source="Megatron-LM#6970"),),
    probe=probe,
    replacements={
        "PersistentAsyncCaller.schedule_async_call": with_an_eye_on_the_worker,
        "PersistentAsyncCaller.close": without_a_worker_that_is_gone,
        "AsyncCallsQueue.maybe_finalize_async_calls": without_lost_calls,
        "AsyncCallsQueue.close": without_the_same_error_again,
    },
)
