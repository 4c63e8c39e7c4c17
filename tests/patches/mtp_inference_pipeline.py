"""Two pipeline stages in two processes, for torchrun: the logits of the last one are those of a pipeline without MTP.

Prints JSON, layout -> whether they are equal in evaluation and in training.
"""

import json

import torch
from megatron.core import parallel_state

from mcore_autopatch.reproductions import _cpu

#: Name -> (layout with MTP, layout without, is the MTP block built?). E: embedding, t: decoder layer, m: MTP, L: loss.
LAYOUTS = {
    "default": (None, None, True),
    "MTP on the last stage": ("Et|tmL", "Et|tL", True),
    "MTP on the stage before": ("Ettm|L", "Ett|L", True),
    "MTP on no stage": (None, None, False),
}


def logits(mtp_num_layers, layout, *, block, training):
    """Run a forward pass, sending the hidden states by hand. Returns ``[b, s, vocab]`` on the last stage."""
    rank = torch.distributed.get_rank()
    stage = {"pre_process": rank == 0, "post_process": rank == 1, **({} if block else {"mtp_block_spec": None})}
    pipeline = {"pipeline_model_parallel_size": 2, "pipeline_dtype": torch.float32}
    if layout is not None:
        pipeline["pipeline_model_parallel_layout"] = layout
    model = _cpu.gpt_model(mtp_num_layers, model=stage, **pipeline).train(training)
    sent = [None]
    with torch.no_grad():
        if rank == 0:
            sent = [model(**_cpu.batch())]
        torch.distributed.broadcast_object_list(sent)
        model.set_input_tensor(sent[0])
        return model(**_cpu.batch()) if rank == 1 else None


# The stages tie their copies of the embedding on the device.
torch.Tensor.cuda = lambda self, *_, **__: self
_cpu.start()
parallel_state.destroy_model_parallel()
parallel_state.initialize_model_parallel(pipeline_model_parallel_size=2)
equal = {}
for name, (layout, plain_layout, block) in LAYOUTS.items():
    for training in (False, True):
        result = logits(1, layout, block=block, training=training)
        plain = logits(None, plain_layout, block=False, training=training)
        if plain is not None:
            assert plain.shape == (2, 8, 64)
            equal.setdefault(name, []).append(torch.equal(result, plain))
if equal:
    print(json.dumps(equal), flush=True)
