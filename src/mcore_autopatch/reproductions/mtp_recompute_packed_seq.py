"""Full recompute of a model with multi-token prediction (MTP) and packed sequences gives the gradients without it."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from mcore_autopatch.reproductions import _cpu


def _packed(method: str) -> str:
    from megatron.core.transformer import multi_token_prediction

    if "packed_seq_params" not in inspect.signature(multi_token_prediction.roll_tensor).parameters:
        return "the MTP layers of this release refuse packed sequences"
    recomputed = train(1, **_cpu.recompute(method))
    return f"losses and gradients are those without recompute: {_cpu.compare(recomputed, train(1))}"


def train(mtp_num_layers: int | None, **config: Any) -> dict[str, Any]:
    """Train a model on sequences of 3, 8 and 5 tokens, packed into one, ``[1, 16]``; return what _cpu.train does."""
    import torch
    from megatron.core.packed_seq_params import PackedSeqParams

    ends = torch.tensor([0, 3, 11, 16], dtype=torch.int32)
    packed = PackedSeqParams(qkv_format="thd", cu_seqlens_q=ends, cu_seqlens_kv=ends, max_seqlen_q=8, max_seqlen_kv=8)
    inputs = {**_cpu.batch(sequences=1, length=16), "attention_mask": None, "packed_seq_params": packed}
    return _cpu.train(_model(mtp_num_layers, **config), **inputs)


def _model(mtp_num_layers: int | None, **config: Any) -> Any:
    """Build a model whose attention keeps to its sequence, as Transformer Engine's does; megatron-core's own cannot."""
    import torch
    from megatron.core.transformer.dot_product_attention import DotProductAttention

    class Packed(DotProductAttention):  # type: ignore[misc]
        def forward(self, *qkv: Any, packed_seq_params: Any, **kwargs: Any) -> Any:
            """Attend from each of the tokens, ``[t, heads, head]``, to those before it in the same sequence."""
            ends = packed_seq_params.cu_seqlens_q.long()
            sequence = torch.arange(len(ends) - 1).repeat_interleave(ends.diff())
            allowed = (sequence[:, None] == sequence).tril()
            kwargs["attention_mask"] = ~allowed[None, None]
            return super().forward(*(tensor.unsqueeze(1) for tensor in qkv[:3]), **kwargs)

    model = _cpu.gpt_model(mtp_num_layers, **config)
    for module in model.modules():
        if type(module) is DotProductAttention:
            module.__class__ = Packed
    return model


def _plain() -> str:
    digest = _cpu.compare(_cpu.train(_cpu.gpt_model(1, **_cpu.recompute())), _cpu.train(_cpu.gpt_model(1)))
    return f"losses and gradients are those without recompute: {digest}"


#: Packed sequences, recomputed and by the method that leaves MTP layers alone; and others, which never failed.
CASES: dict[str, Callable[[], str]] = {
    "packed": functools.partial(_packed, "uniform"),
    "block": functools.partial(_packed, "block"),
    "plain": _plain,
}
