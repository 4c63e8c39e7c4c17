"""Full recompute of a model with multi-token prediction (MTP) gives the gradients without recompute."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from mcore_autopatch.reproductions import _cpu


def _plain() -> str:
    digest = _cpu.compare(_cpu.train(_cpu.gpt_model(1, **_cpu.recompute())), _cpu.train(_cpu.gpt_model(1)))
    return f"losses and gradients are those without recompute: {digest}"


def _mask(method: str) -> str:
    """Train a model whose MTP layer is a mixture of experts, which leaves masked tokens out of its auxiliary losses."""
    import torch
    from megatron.core.transformer.multi_token_prediction import MultiTokenPredictionLayer

    if "padding_mask" not in inspect.signature(MultiTokenPredictionLayer.forward).parameters:
        return "the MTP layers of this release take no padding mask"
    mask = torch.arange(8).expand(2, 8) > 4  # noqa: PLR2004
    seen: list[Any] = []
    recomputed = _cpu.train(_with_experts(seen, **_cpu.recompute(method)), padding_mask=mask)
    times = len(seen)
    expected = _cpu.train(_with_experts(seen), padding_mask=mask)
    digest = _cpu.compare(recomputed, expected)
    if not all(one is not None and torch.equal(one, seen[-1]) for one in seen):
        raise ValueError("the mask did not reach every call of the MTP layer")
    unmasked = _cpu.train(_with_experts([]))
    if all(torch.equal(expected[name], unmasked[name]) for name in expected if name.startswith("mtp.")):
        raise ValueError("the mask makes no difference")
    return f"calls that saw the mask: {times}; losses and gradients are those without recompute: {digest}"


def _with_experts(seen: list[Any], **config: Any) -> Any:
    """Build a model with four experts in its MTP layer, which appends each padding_mask that it gets to ``seen``."""
    from megatron.core.models.gpt import gpt_layer_specs
    from megatron.core.transformer.transformer_config import TransformerConfig

    _cpu.start()
    sizes = TransformerConfig(num_layers=2, hidden_size=32, num_attention_heads=4, mtp_num_layers=1)
    layer = gpt_layer_specs.get_gpt_layer_local_spec(num_experts=4, moe_grouped_gemm=False)
    block = gpt_layer_specs.get_gpt_mtp_block_spec(sizes, layer, use_transformer_engine=False)
    experts: dict[str, Any] = {
        "num_moe_experts": 4,
        "moe_aux_loss_coeff": 0.5,
        "moe_z_loss_coeff": 0.5,
        "add_bias_linear": False,
    }
    model = _cpu.gpt_model(1, model={"mtp_block_spec": block}, **experts, **config)
    model.mtp.layers[0].mtp_model_layer.register_forward_pre_hook(
        lambda _module, _args, kwargs: seen.append(kwargs["padding_mask"]), with_kwargs=True
    )
    return model


#: Without and with a mask of padding tokens; recomputed, and by the method that leaves MTP layers alone.
CASES: dict[str, Callable[[], str]] = {
    "plain": _plain,
    "mask": functools.partial(_mask, "uniform"),
    "block": functools.partial(_mask, "block"),
}
