"""A checkpoint with NumPy values in its common state comes back equal."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mcore_autopatch.reproductions import _cpu


def _round_trip(kind: str, *, earlier: bool = False) -> str:
    """Save common values, load them and compare. ``earlier``: they are in common.pt, as releases before 0.19 do it."""
    _cpu.start()
    import torch
    from megatron.core import dist_checkpointing

    common = _values(kind)
    with _cpu.shared_folder() as folder:
        dist_checkpointing.save({**_sharded(1.0), **({} if earlier else common)}, str(folder))
        if earlier and torch.distributed.get_rank() == 0:
            torch.save(common, Path(folder, "common.pt"))
        torch.distributed.barrier()
        loaded = dist_checkpointing.load(_sharded(0.0), str(folder))
    if not torch.equal(loaded["weight"], torch.ones(3)):
        raise ValueError(f"weight: loaded {loaded['weight']}")
    for name, value in common.items():
        if type(loaded[name]) is not type(value) or loaded[name].tolist() != value.tolist():
            raise ValueError(f"{name}: saved {value!r}, loaded {loaded[name]!r}")
        if loaded[name].dtype != value.dtype:
            raise ValueError(f"{name}: saved as {value.dtype}, loaded as {loaded[name].dtype}")
    return f"{len(common)} values read back equal"


def _sharded(value: float) -> dict[str, Any]:
    import torch
    from megatron.core.dist_checkpointing import ShardedTensor

    rank = torch.distributed.get_rank()
    return {"weight": ShardedTensor.from_rank_offsets("weight", torch.full((3,), value), replica_id=rank)}


def _values(kind: str) -> dict[str, Any]:
    """Return what training programs put beside their tensors: counters, losses, flags, names, times, tables."""
    import numpy as np

    table = np.array([(1, 0.5)], dtype=[("step", "i8"), ("loss", "f4")])
    values = (1.5, 7, True, "gpt", b"gpt", 1j, np.float32(0.1), np.datetime64("2025-01-01"), np.arange(3) / 3, table)
    arrays = {str(number): np.asarray(value) for number, value in enumerate(values)}
    return arrays if kind == "array" else {name: array.flat[0] for name, array in arrays.items() if not array.ndim}


#: Scalars and arrays, each in a checkpoint of this release; and scalars in one of a release before 0.19.
CASES: dict[str, Callable[[], str]] = {
    "scalar": functools.partial(_round_trip, "scalar"),
    "array": functools.partial(_round_trip, "array"),
    "earlier": functools.partial(_round_trip, "scalar", earlier=True),
}
