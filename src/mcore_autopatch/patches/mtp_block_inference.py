"""The block of multi-token prediction (MTP) layers refuses to run without labels."""

import ast
import inspect
import textwrap
from collections.abc import Callable
from types import ModuleType
from typing import Any

from mcore_autopatch.declaration import Affected, Patch

#: What the replacement hands to the original in training.
_PARAMETERS = {"hidden_states", "input_ids", "labels", "loss_mask", "output_layer", "compute_language_model_loss"}


def probe(module: ModuleType) -> bool:
    """Tell whether ``MultiTokenPredictionBlock.forward`` computes the MTP loss and asserts that there are labels."""
    forward = module.MultiTokenPredictionBlock.forward
    nodes = ast.walk(ast.parse(textwrap.dedent(inspect.getsource(forward))))
    return inspect.signature(forward).parameters.keys() >= _PARAMETERS and any(
        isinstance(node, ast.Assert) and ast.unparse(node.test) == "labels is not None" for node in nodes
    )


def without_labels(original: Callable[..., Any]) -> Callable[..., Any]:
    """Without labels, return the hidden states of the main model, ``[s, b, h]``, which the block passes through.

    Training still runs the MTP layers, with a loss of zeros in the place of the MTP loss: a parameter without a
    gradient would make megatron's DDP fail with overlapped gradient reduction, a zero gradient does not. In evaluation
    they do not run.

    Source: Megatron-LM#3297. Raises what the original raises.
    """
    import torch

    signature = inspect.signature(original)
    position = list(signature.parameters).index("labels")

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Training passes labels in every step, and binding takes ten times as long as this.
        if (args[position - 1] if len(args) >= position else kwargs.get("labels")) is not None:
            return original(self, *args, **kwargs)
        try:
            call = signature.bind(self, *args, **kwargs)
        except TypeError:
            return original(self, *args, **kwargs)  # raises the same, in its own words
        arguments = call.arguments
        if not self.training:
            return arguments["hidden_states"]
        arguments.update(
            # Only the shape counts. It is that of the loss, [b, s], which no parallelism changes.
            labels=arguments["input_ids"],
            loss_mask=None,
            output_layer=_hidden_states,
            compute_language_model_loss=_zeros,
        )
        return original(*call.args, **call.kwargs)

    def _hidden_states(hidden_states: Any, **_: Any) -> tuple[Any, None]:
        return hidden_states, None

    def _zeros(labels: Any, hidden_states: Any) -> Any:
        # An empty slice has the sum 0 and gives zero gradients, whatever the values. Zero times infinity is not zero.
        return torch.zeros(labels.shape, device=labels.device) + hidden_states[:0].sum()

    return forward


patch = Patch(
    title="multi-token prediction (MTP) models of megatron-core 0.12 and 0.13 cannot run without labels",
    symptom=(
        "A forward pass without labels (evaluation, inference, log-probabilities in reinforcement learning) ends in "
        "MultiTokenPredictionBlock.forward."
    ),
    errors=("AssertionError: labels should not be None for calculating multi token prediction loss.",),
    cause=(
        "The block computes the MTP loss and asserts that there are labels, though all that it returns are the hidden "
        "states of the main model. From 0.14 on, GPTModel computes the loss, and mtp-inference corrects it there."
    ),
    effect=(
        "Without labels the result is the main model's logits, as in megatron-core 0.17. In evaluation the MTP layers "
        "do not run; in training they run and get zero gradients. Calls with labels are passed on untouched."
    ),
    upstream="https://github.com/NVIDIA/Megatron-LM/pull/3297",
    fixed_in="0.14.0",
    target="megatron.core.transformer.multi_token_prediction",
    affected=(Affected(megatron_core=">=0.12,<0.14", source="the assertion in MultiTokenPredictionBlock.forward"),),
    probe=probe,
    replacements={"MultiTokenPredictionBlock.forward": without_labels},
)
