"""A GPTModel with a mixture of experts (MoE) runs, forward and backward, without Transformer Engine."""

import functools
import hashlib
from collections.abc import Callable
from typing import Any

from mcore_autopatch.reproductions import _cpu


def _run(*, training: bool, half: bool = False, **config: Any) -> str:
    """Compute a loss, and in training every gradient; return them as text, the gradients as a digest of their bits."""
    import torch

    batch = _cpu.batch()
    experts: dict[str, Any] = {"num_moe_experts": 4, "moe_router_topk": 2, "add_bias_linear": False}
    model = _cpu.gpt_model(None, **experts, **config).train(training)
    if half:
        model.bfloat16()
    with torch.set_grad_enabled(training):
        loss = model(**batch, labels=batch["input_ids"].roll(-1, dims=1)).float().mean()
    if not loss.isfinite():
        raise ValueError(f"the loss is {loss.item()}")
    if not training:
        return f"loss {loss.item()}"
    loss.backward()
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        if parameter.grad is None or not parameter.grad.isfinite().all():
            raise ValueError(f"no gradient, or one that is not finite: {name}")
        digest.update(parameter.grad.float().numpy().tobytes())
    return f"loss {loss.item()}, gradients {digest.hexdigest()[:16]}"


#: Evaluation; training with the router in the precision of the model, in double, and in single for a bfloat16 model.
CASES: dict[str, Callable[[], str]] = {
    "eval": functools.partial(_run, training=False),
    "train": functools.partial(_run, training=True),
    "fp64": functools.partial(_run, training=True, moe_router_dtype="fp64"),
    "bf16": functools.partial(_run, training=True, half=True, moe_router_dtype="fp32"),
}
