"""Prints a digest of each result that the patch must not change, to be compared with a run without it."""

import hashlib
import json

from megatron.core.models.gpt.gpt_model import GPTModel

from mcore_autopatch.reproductions import _cpu


def digest(*, mtp_num_layers, labels, training, **config):
    """Hash the output, ``[b, s]`` or ``[b, s, vocab]``, and in training every gradient."""
    batch = _cpu.batch()
    if labels:
        batch.update(labels=batch["input_ids"].roll(-1, dims=1), loss_mask=(batch["position_ids"] < 6).float())
    model = _cpu.gpt_model(mtp_num_layers, **config).train(training)
    output = model(**batch)
    if training:
        output.square().mean().backward()
    values = {"output": output, **{name: parameter.grad for name, parameter in model.named_parameters()}}
    total = hashlib.sha256()
    for name in sorted(values):
        value = None if values[name] is None else values[name].detach().numpy().tobytes()
        total.update(repr((name, value)).encode())
    return total.hexdigest()


print(
    json.dumps(
        {
            "patched": hasattr(GPTModel._postprocess, "__mcore_autopatch__"),
            # First, because megatron-core sizes its log of MTP losses when it is first used.
            "labels, two MTP layers": digest(mtp_num_layers=2, labels=True, training=True),
            "labels, training": digest(mtp_num_layers=1, labels=True, training=True),
            "labels, per-token loss": digest(
                mtp_num_layers=1, labels=True, training=True, calculate_per_token_loss=True
            ),
            "labels, evaluation": digest(mtp_num_layers=1, labels=True, training=False),
            "labels, no MTP": digest(mtp_num_layers=None, labels=True, training=True),
            "no labels, no MTP, training": digest(mtp_num_layers=None, labels=False, training=True),
            "no labels, no MTP, evaluation": digest(mtp_num_layers=None, labels=False, training=False),
        }
    )
)
