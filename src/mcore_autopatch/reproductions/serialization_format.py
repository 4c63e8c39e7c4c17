"""A checkpoint goes out through megatron-core's writer, in each of its modes, and comes back equal."""

import functools
from collections.abc import Callable
from typing import Any

from mcore_autopatch.reproductions import _cpu


def _round_trip(mode: str) -> str:
    """Save a small state, load it into an empty one, and compare the two."""
    _cpu.start()
    import torch
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy

    saved = _state(filled=True)
    with _cpu.shared_folder() as folder:
        request = dist_checkpointing.save(
            saved, folder, TorchDistSaveShardedStrategy("torch_dist", 1), async_sharded_save=mode != "sync"
        )
        if request is not None:
            _write(request, persistent=mode == "persistent")
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


def _write(request: Any, *, persistent: bool) -> None:
    """Let a forked process, or a spawned one that stays, do the writing, and wait for it. Leaves no process behind."""
    from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue

    if request.preload_fn is not None:
        request = request._replace(preload_fn=_cpu.with_stand_ins(request.preload_fn))
    queue = AsyncCallsQueue(persistent=persistent)
    try:
        queue.schedule_async_request(request)
        queue.maybe_finalize_async_calls(blocking=True)
        queue.close()
    except BaseException:
        # close() waits for the worker, for ever if it is dead or has been given something that it cannot finish.
        for caller in (queue.persistent_caller, *(call.async_caller for call in queue.async_calls)):
            process = getattr(caller, "process", None)
            if process is not None:
                process.kill()
                process.join()
                caller.process = None
        raise


#: Mode of the writer -> its round trip: in this process, in one that is forked, in one that is spawned and stays.
CASES: dict[str, Callable[[], str]] = {
    mode: functools.partial(_round_trip, mode) for mode in ("sync", "async", "persistent")
}
