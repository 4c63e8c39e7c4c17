"""Recomputing multi-token prediction (MTP) layers fails over a padding mask that one method passes to another."""

import ast
import inspect
import textwrap
from collections.abc import Callable
from types import ModuleType
from typing import Any

from mcore_autopatch.declaration import Affected, Patch


def probe(module: ModuleType) -> bool:
    """Tell whether ``forward`` hands a padding mask to a ``_checkpointed_forward`` that does not take one."""
    layer = module.MultiTokenPredictionLayer
    taken = inspect.signature(layer._checkpointed_forward).parameters
    if "padding_mask" in taken or any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values()):
        return False
    calls = ast.walk(ast.parse(textwrap.dedent(inspect.getsource(layer.forward))))
    return "padding_mask" in inspect.signature(layer._proj_and_transformer_layer).parameters and any(
        isinstance(call, ast.Call)
        and ast.unparse(call.func) == "self._checkpointed_forward"
        and any(keyword.arg == "padding_mask" for keyword in call.keywords)
        for call in calls
    )


class _Masked:
    """An MTP layer whose ``_proj_and_transformer_layer`` gets the mask, whoever calls it, and whenever."""

    def __init__(self, layer: Any, padding_mask: Any) -> None:
        self._layer = layer
        self._padding_mask = padding_mask

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)

    def _proj_and_transformer_layer(self, *args: Any, **kwargs: Any) -> Any:
        return self._layer._proj_and_transformer_layer(*args, **kwargs, padding_mask=self._padding_mask)


def with_padding_mask(original: Callable[..., Any]) -> Callable[..., Any]:
    """Take the keyword ``padding_mask``, ``[b, s]`` or None, and give it to ``_proj_and_transformer_layer``.

    The original checkpoints a function that calls ``self._proj_and_transformer_layer``, now and again in the backward
    pass, so that a stand-in for ``self`` brings the mask to both calls. The mask has no gradient that could get lost.

    Source: Megatron-LM#3457. Raises what the original raises.
    """

    def _checkpointed_forward(self: Any, *args: Any, padding_mask: Any = None, **kwargs: Any) -> Any:
        return original(self if padding_mask is None else _Masked(self, padding_mask), *args, **kwargs)

    return _checkpointed_forward


patch = Patch(
    title="full recompute fails in multi-token prediction (MTP) layers",
    symptom=("Training a model with MTP layers and recompute_granularity='full' ends in its first forward pass."),
    errors=(
        (
            "TypeError: MultiTokenPredictionLayer._checkpointed_forward() got an unexpected keyword argument "
            "'padding_mask'"
        ),
    ),
    cause=(
        "Two changes that do not fit together: forward passes padding_mask to _checkpointed_forward, and "
        "_checkpointed_forward was given a fixed list of parameters without it."
    ),
    effect=(
        "The layers are recomputed, and the mask reaches them in the forward pass and when they are computed again in "
        "the backward pass, so that losses and gradients are those without recompute."
    ),
    upstream="https://github.com/NVIDIA/Megatron-LM/pull/3457",
    fixed_in="0.19.0",
    target="megatron.core.transformer.multi_token_prediction",
    affected=(Affected(megatron_core=">=0.18,<0.19", source="Megatron-LM#4933"),),
    probe=probe,
    replacements={"MultiTokenPredictionLayer._checkpointed_forward": with_padding_mask},
)
