"""A GPTModel with a mixture of experts (MoE) runs, forward and backward, without Transformer Engine."""

import functools
from collections.abc import Callable
from typing import Any

from mcore_autopatch.reproductions import _cpu


def _model(**config: Any) -> Any:
    experts: dict[str, Any] = {"num_moe_experts": 4, "moe_router_topk": 2, "add_bias_linear": False}
    return _cpu.gpt_model(None, **experts, **config)


def _eval() -> str:
    import torch

    with torch.no_grad():
        logits = _model().eval()(**_cpu.batch())
    if not logits.isfinite().all():
        raise ValueError("some logits are not finite")
    return f"logits {_cpu.digest({'logits': logits})}"


def _train(*, half: bool = False, **config: Any) -> str:
    model = _model(**config)
    values = _cpu.train(model.bfloat16() if half else model)
    return f"losses and gradients {_cpu.digest({name: value.float() for name, value in values.items()})}"


#: Evaluation; training with the router in the precision of the model, in double, and in single for a bfloat16 model.
CASES: dict[str, Callable[[], str]] = {
    "eval": _eval,
    "train": _train,
    "fp64": functools.partial(_train, moe_router_dtype="fp64"),
    "bf16": functools.partial(_train, half=True, moe_router_dtype="fp32"),
}
