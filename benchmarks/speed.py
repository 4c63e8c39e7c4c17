"""How fast patched releases of megatron-core save checkpoints and evaluate. Run in fresh interpreters; prints JSON."""

import functools
import inspect
import json
import sys
import time

from mcore_autopatch.attributes import MARK
from mcore_autopatch.reproductions import _cpu


def save(rounds=6, tensors=8, megabytes=16):
    """Megabytes per second of saving tensors to the disk, in the best of some rounds."""
    _cpu.start()
    import torch
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.strategies import filesystem_async
    from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy

    write_item = filesystem_async._write_item
    if "serialization_format" not in inspect.getsource(filesystem_async) and not hasattr(write_item, MARK):
        # Without us, 0.12 saves only with the bug worked around by hand.
        from torch.distributed.checkpoint.filesystem import SerializationFormat

        filled = functools.partial(write_item, serialization_format=SerializationFormat.TORCH_SAVE)
        filesystem_async._write_item = filled
    sharded = dist_checkpointing.ShardedTensor.from_rank_offsets
    state = {str(number): sharded(str(number), torch.rand(megabytes * 2**18)) for number in range(tensors)}
    best = float("inf")
    for _ in range(rounds):
        with _cpu.shared_folder() as folder:
            started = time.perf_counter()
            dist_checkpointing.save(state, folder, TorchDistSaveShardedStrategy("torch_dist", 1))
            best = min(best, time.perf_counter() - started)
    return tensors * megabytes / best


def evaluate(rounds=60):
    """Milliseconds of a forward pass without labels of a model with one MTP layer, in the best of some rounds."""
    import torch

    torch.set_num_threads(1)
    model = _cpu.gpt_model(1, hidden_size=256, model={"max_sequence_length": 64}).eval()
    batch = _cpu.batch(sequences=4, length=64)
    best = float("inf")
    with torch.no_grad():
        for _ in range(rounds):
            started = time.perf_counter()
            logits = model(**batch)
            best = min(best, time.perf_counter() - started)
    assert tuple(logits.shape) == (4, 64, 64)
    return best * 1e3


if __name__ == "__main__":
    answer = globals()[sys.argv[1]]()
    print(json.dumps(answer))
