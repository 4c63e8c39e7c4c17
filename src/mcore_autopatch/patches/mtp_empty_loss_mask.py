"""The multi-token prediction (MTP) loss of a micro-batch in which no token counts is divided by zero."""

import ast
import inspect
import textwrap
from collections.abc import Callable
from types import ModuleType
from typing import Any

from mcore_autopatch.declaration import Affected, Patch


def divides_by_count(function: Callable[..., Any]) -> bool:
    """Tell whether ``function`` divides the MTP loss by the count of ``roll_tensor``, as it is, for the gradients."""
    nodes = list(ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))))
    counts = {
        node.targets[0].elts[1].id
        for node in nodes
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func) == "roll_tensor"
        and isinstance(node.targets[0], ast.Tuple)
        and isinstance(node.targets[0].elts[1], ast.Name)
    }
    divisors = {
        ast.unparse(division.right)
        for node in nodes
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "MTPLossAutoScaler.apply"
        for division in ast.walk(node)
        if isinstance(division, ast.BinOp) and isinstance(division.op, ast.Div)
    }
    stored = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    return any(stored.count(name) == 1 for name in counts & divisors)


def probe(module: ModuleType) -> bool:
    """Tell whether ``GPTModel._postprocess`` divides the MTP loss by a count that may be zero."""
    return divides_by_count(module.GPTModel._postprocess)


def with_a_count_to_divide_by(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a count of 1 in the place of 0, so that a loss of zeros stays zero and has zero gradients.

    The rolled tensor, and every other count, are the original's. megatron-core 0.17 clamps the count to at least 1,
    which is the same for masks of zeros and ones. Source: Megatron-LM#3396. Raises what the original raises.
    """

    def roll_tensor(*args: Any, **kwargs: Any) -> Any:
        rolled, count = original(*args, **kwargs)
        # Asking in Python whether the count is zero would wait for the device. This takes less time than `count == 0`.
        return rolled, count.masked_fill(count.logical_not(), 1)

    return roll_tensor


patch = Patch(
    title="a micro-batch without a token in its rolled loss mask makes multi-token prediction (MTP) gradients NaN",
    symptom=(
        "The main loss is finite, but after the backward pass the gradients are NaN, in the MTP layers and in all "
        "layers before them, and so is the logged MTP loss. Nothing is raised unless DDP has check_for_nan_in_grad."
    ),
    errors=(
        (
            "Unexpected result nan (message='found NaN in local grad norm for bucket #0 in backward pass before "
            "data-parallel communication collective')"
        ),
    ),
    cause=(
        "GPTModel._postprocess divides the MTP loss by the number of tokens in the loss mask after rolling it by one. "
        "It is 0 when no token of the micro-batch counts, or of this rank's part of it under context parallelism."
    ),
    effect=(
        "Such a micro-batch adds nothing to the MTP gradients and logs an MTP loss of 0, as with megatron-core 0.17. "
        "Where at least one token counts, losses and gradients are the same bit for bit."
    ),
    upstream="https://github.com/NVIDIA/Megatron-LM/pull/3396",
    fixed_in="0.17.0",
    target="megatron.core.models.gpt.gpt_model",
    affected=(Affected(megatron_core=">=0.14,<0.17", source="Megatron-LM#3396"),),
    probe=probe,
    # GPTModel looks this module global up when it computes the MTP loss, and nobody else does.
    replacements={"roll_tensor": with_a_count_to_divide_by},
)
