"""What the reproductions of checkpointing share: a checkpoint goes out and comes back, in each mode of the writer."""

import contextlib
import inspect
import signal
import time
from collections.abc import Iterator
from multiprocessing import connection
from typing import Any

from mcore_autopatch.reproductions import _cpu

#: How the writer works: in this process, in one that is forked, or in one that is spawned and stays.
MODES = ("sync", "async", "persistent")


def round_trip(mode: str, *, stand_ins: bool = True) -> str:
    """Save a small state in the given mode of the writer, load it into an empty one, and compare the two.

    ``stand_ins`` are what the calls of torch.cuda find in the process of a persistent worker, as they do in this one.
    Raises ValueError where they differ, and what megatron-core raises. Leaves neither a file nor a process behind.
    """
    _cpu.start()
    import torch
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy

    saved = _state(filled=True)
    # From 0.17 on, the writer of megatron-core itself has to be asked for.
    named = "async_strategy" in inspect.signature(dist_checkpointing.save).parameters
    options = {"async_strategy": "mcore"} if named else {}
    with _cpu.shared_folder() as folder:
        request = dist_checkpointing.save(
            saved, folder, TorchDistSaveShardedStrategy("torch_dist", 1), async_sharded_save=mode != "sync", **options
        )
        if request is not None:
            _write(request, persistent=mode == "persistent", stand_ins=stand_ins)
        loaded = dist_checkpointing.load(_state(filled=False), folder)
    for name, value in saved.items():
        expected = getattr(value, "data", value)
        equal = torch.equal(loaded[name], expected) if torch.is_tensor(expected) else loaded[name] == expected
        if not equal:
            raise ValueError(f"{name}: saved {expected}, loaded {loaded[name]}")
    return f"checkpoint read back equal, {len(saved)} entries"


def _state(*, filled: bool) -> dict[str, Any]:
    """Return a state of sharded tensors and objects, which the writer writes, and of common values.

    Every rank owns a shard of its own: one with nothing to write would wait for the others when their writers fail.
    """
    import torch
    from megatron.core.dist_checkpointing import ShardedTensor
    from megatron.core.dist_checkpointing.mapping import ShardedObject

    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()

    def tensor(name: str, value: Any) -> Any:
        data = value if filled else torch.zeros_like(value)
        return ShardedTensor.from_rank_offsets(name, data, (0, rank, ranks))

    generator = torch.Generator().manual_seed(rank)
    history = {"amax": [1.0, float(rank)]} if filled else None
    return {
        "weight": tensor("weight", torch.randn(4, 8, generator=generator)),
        "half": tensor("half", torch.randn(64, 64, generator=generator).bfloat16()),
        "count": tensor("count", torch.arange(5) + 100 * rank),
        "all": ShardedTensor.from_rank_offsets("all", torch.full((3,), 2.5 * filled), replica_id=rank),
        "extra": ShardedObject("extra", history, (ranks,), (rank,)),
        **({"iteration": 7, "args": {"hidden_size": 32, "name": "gpt"}} if filled else {}),
    }


def _write(request: Any, *, persistent: bool, stand_ins: bool) -> None:
    """Let another process do the writing, and wait for it. Leaves no process behind."""
    from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue

    # Up to 0.11 the tensors are copied to the host before, and no process stays.
    if stand_ins and getattr(request, "preload_fn", None) is not None:
        request = request._replace(preload_fn=_cpu.with_stand_ins(request.preload_fn))
    queue = AsyncCallsQueue(persistent=True) if persistent else AsyncCallsQueue()
    with ended(queue), no_endless_wait(queue):
        queue.schedule_async_request(request)
        queue.maybe_finalize_async_calls(blocking=True)
        queue.close()


def has_persistent_worker() -> bool:
    """Tell whether this megatron-core has persistent workers: it has them since 0.12."""
    from megatron.core.dist_checkpointing.strategies import async_utils

    return hasattr(async_utils, "PersistentAsyncCaller")


def persistent_caller(queue: Any) -> Any:
    """Return what an AsyncCallsQueue knows its persistent worker by; None where there is none."""
    # From 0.17 on it belongs to the class.
    return getattr(queue, "persistent_caller", None) or getattr(queue, "_persistent_caller", None)


@contextlib.contextmanager
def ended(queue: Any) -> Iterator[None]:
    """End the processes of an AsyncCallsQueue after an exception.

    Its own close() waits for the worker, for ever if that is dead or has been given something that it cannot finish.
    """
    try:
        yield
    except BaseException:
        for caller in {persistent_caller(queue), *(call.async_caller for call in queue.async_calls)}:
            process = getattr(caller, "process", None)
            if process is None:
                continue
            if process.pid is not None:  # the limit of a case may have interrupted its start
                process.kill()
                process.join()
            # From 0.17 on the class knows the process too.
            if hasattr(caller, "_persistent_process"):
                caller.close(abort=True)
            caller.process = None
        raise


@contextlib.contextmanager
def no_endless_wait(queue: Any, *, limit: float = float("inf")) -> Iterator[None]:
    """Raise TimeoutError when the persistent worker has been dead for 5 seconds, or after ``limit`` seconds."""
    started = time.monotonic()
    died: list[float] = []

    def look(number: int, frame: Any) -> None:
        now = time.monotonic()
        if alarm and now > started + alarm:
            before(number, frame)
        process: Any = getattr(persistent_caller(queue), "process", None)
        try:
            # Asking for the exit code would take it away from somebody who is waiting for the process.
            dead = [] if process is None else connection.wait([process.sentinel], 0)
        except ValueError:  # it is being started
            dead = []
        if dead:
            died.append(now)
            if now > died[0] + 5:
                end = f"which has ended with exit code {process.exitcode}"
                raise TimeoutError(f"the trainer still waits for its checkpoint worker, {end}")
        elif now > started + limit:
            raise TimeoutError("the trainer still waits for its checkpoint worker, which has nothing to do")

    before: Any = signal.signal(signal.SIGALRM, look)
    # There is one timer, so that whoever has set it is called from here.
    alarm, interval = signal.setitimer(signal.ITIMER_REAL, 0.5, 0.5)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, alarm, interval)
