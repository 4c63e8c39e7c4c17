"""Recomputing multi-token prediction (MTP) layers fails with packed sequences."""

import ast
import inspect
import textwrap
from collections.abc import Callable
from types import ModuleType
from typing import Any

from mcore_autopatch.declaration import Affected, Patch


def probe(module: ModuleType) -> bool:
    """Tell whether ``_checkpointed_forward`` gives the values of all its keywords to ``tensor_parallel.checkpoint``.

    Before 0.16 ``forward`` refused packed sequences, so that none came that far.
    """
    layer = module.MultiTokenPredictionLayer
    calls = ast.walk(ast.parse(textwrap.dedent(inspect.getsource(layer._checkpointed_forward))))
    return "packed_seq_params is None" not in inspect.getsource(layer.forward) and any(
        isinstance(call, ast.Call)
        and ast.unparse(call.func) == "tensor_parallel.checkpoint"
        and "*kwargs.values()" in map(ast.unparse, call.args)
        for call in calls
    )


def tensors_only(original: Callable[..., Any]) -> Callable[..., Any]:
    """Keep keywords that are neither a tensor nor None out of the checkpoint, and give them to its function instead.

    Source: Megatron-LM#4593. Raises what the original raises.
    """
    from torch import Tensor

    def _checkpointed_forward(self: Any, forward_func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        for value in kwargs.values():
            if value is not None and not isinstance(value, Tensor):
                break
        else:
            return original(self, forward_func, *args, **kwargs)
        # Transformer Engine's checkpoint, for FP8, is given the keywords as keywords.
        if self.config.fp8:
            return original(self, forward_func, *args, **kwargs)
        kept = {name: value for name, value in kwargs.items() if not (value is None or isinstance(value, Tensor))}

        # Holding args and kwargs themselves would keep activations alive after the backward pass.
        count, names = len(args), tuple(kwargs)

        def forward(*values: Any, **named: Any) -> Any:
            # The checkpoint passes everything by position, in the order of args and then of kwargs.
            named.update(zip(names, values[count:], strict=False), **kept)
            return forward_func(*values[:count], **named)

        return original(self, forward, *args, **{**kwargs, **dict.fromkeys(kept)})

    return _checkpointed_forward


patch = Patch(
    title="full recompute of multi-token prediction (MTP) layers fails with packed sequences",
    symptom=(
        "Training a model with MTP layers, packed sequences and recompute_granularity='full' ends in its first forward "
        "pass."
    ),
    errors=("TypeError: save_for_backward can only save variables, but argument 10 is of type PackedSeqParams",),
    cause=(
        "MultiTokenPredictionLayer._checkpointed_forward passes the values of all its keywords, PackedSeqParams "
        "included, to a checkpoint that can only save tensors."
    ),
    effect=(
        "What is no tensor goes around the checkpoint, to the function that it calls in the forward and in the "
        "backward pass. Calls in which everything is a tensor or None, and FP8 recompute, are passed on untouched."
    ),
    upstream="https://github.com/NVIDIA/Megatron-LM/pull/4593",
    fixed_in="0.18.0",
    target="megatron.core.transformer.multi_token_prediction",
    affected=(Affected(megatron_core=">=0.16,<0.18", source="Megatron-LM#3643"),),
    probe=probe,
    replacements={"MultiTokenPredictionLayer._checkpointed_forward": tensors_only},
)
