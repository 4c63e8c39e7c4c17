"""Save a tensor through megatron-core's persistent checkpoint worker, and load it again. Knows nothing of any patch."""

import contextlib
import tempfile

import torch
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy

if not torch.cuda.is_available():  # megatron-core calls these without asking
    torch.cuda.synchronize, torch.cuda.current_device = lambda: None, lambda: "cpu"


def state(weight):
    return {"weight": dist_checkpointing.ShardedTensor.from_rank_offsets("weight", weight)}


if __name__ == "__main__":
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    strategy = TorchDistSaveShardedStrategy("torch_dist", 1)
    with contextlib.closing(AsyncCallsQueue(persistent=True)) as queue, tempfile.TemporaryDirectory() as folder:
        request = dist_checkpointing.save(state(torch.arange(6.0)), folder, strategy, async_sharded_save=True)
        queue.schedule_async_request(request)
        queue.maybe_finalize_async_calls(blocking=True)
        print("read back:", dist_checkpointing.load(state(torch.zeros(6)), folder)["weight"])
