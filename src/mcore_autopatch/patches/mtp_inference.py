"""A model with multi-token prediction (MTP) cannot run without labels."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from mcore_autopatch.declaration import Affected, Device, Patch

#: The conditions under which releases compute the MTP loss: 0.14 and 0.15, then 0.16.
_BY_BLOCK = "self.mtp_process"
_BY_CONFIG = "self.config.mtp_num_layers is not None"


def _loss_conditions(function: Callable[..., Any]) -> Iterator[str]:
    """Yield the condition of every ``if`` that directly does ``labels.clone()``."""
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
        if isinstance(node, ast.If) and any("labels.clone()" in ast.unparse(statement) for statement in node.body):
            yield ast.unparse(node.test)


def probe(module: ModuleType) -> bool:
    """Tell whether ``GPTModel._postprocess`` clones the labels under a condition that does not look at them."""
    conditions = list(_loss_conditions(module.GPTModel._postprocess))
    return conditions in ([_BY_BLOCK], [_BY_CONFIG])


class _View:
    """A model whose attributes can be replaced for one call, without anybody else seeing it."""

    def __init__(self, model: Any, **replaced: Any) -> None:
        # Past __setattr__, which writes to the model.
        vars(self).update(replaced, _model=model)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._model, name, value)


def without_labels(original: Callable[..., Any]) -> Callable[..., Any]:
    """Without labels, return the logits of the main model, ``[b, s, vocab]``, as megatron-core 0.17 does.

    Training still runs the MTP layers, and keeps only the first of the ``1 + mtp_num_layers`` chunks of the hidden
    states along dimension 0 (``[(1 + mtp_num_layers) * s, b, h]``): a parameter without a gradient would make
    megatron's DDP fail with overlapped gradient reduction, a zero gradient does not. In evaluation they do not run.

    Source: Megatron-LM#3297. Raises what the original raises.
    """
    import copy  # loaded by torch, and perhaps not yet when this file is read

    signature = inspect.signature(original)
    position = list(signature.parameters).index("labels")
    by_block = _BY_BLOCK in _loss_conditions(original)

    def _postprocess(self: Any, *args: Any, **kwargs: Any) -> Any:
        labels = args[position - 1] if len(args) >= position else kwargs.get("labels")
        if labels is not None or not self.post_process or not _computes_loss(self):
            return original(self, *args, **kwargs)
        try:
            call = signature.bind(self, *args, **kwargs)
        except TypeError:
            return original(self, *args, **kwargs)  # raises the same, in its own words
        arguments = call.arguments

        def mtp(**block_arguments: Any) -> Any:
            # The block returns what it was given, followed by the chunks of its layers.
            return self.mtp(**block_arguments)[: block_arguments["hidden_states"].shape[0]]

        if arguments.get("mtp_in_postprocess"):
            arguments["mtp_in_postprocess"] = self.training
        elif self.mtp_process or getattr(self.config, "mtp_standalone", False):
            # The MTP layers ran before this call, here or on an earlier pipeline stage, and appended their chunks.
            chunks = arguments["hidden_states"].chunk(1 + (self.config.mtp_num_layers or 0), dim=0)
            arguments["hidden_states"] = chunks[0]
        config = copy.copy(self.config)
        config.mtp_num_layers = None
        arguments["self"] = _View(self, config=config, mtp_process=False, mtp=mtp)
        return original(*call.args, **call.kwargs)

    def _computes_loss(model: Any) -> bool:
        return bool(model.mtp_process) if by_block else model.config.mtp_num_layers is not None

    return _postprocess


patch = Patch(
    title="multi-token prediction (MTP) models crash without labels",
    symptom=(
        "A forward pass without labels (evaluation, inference, log-probabilities in reinforcement learning) ends in "
        "GPTModel._postprocess."
    ),
    errors=("AttributeError: 'NoneType' object has no attribute 'clone'",),
    cause=(
        "GPTModel._postprocess computes the MTP loss whenever the model has MTP layers, in 0.16 even when "
        "mtp_num_layers is 0, and starts with labels.clone()."
    ),
    effect=(
        "Without labels the result is the main model's logits, as in megatron-core 0.17. In evaluation the MTP layers "
        "do not run; in training they run and get zero gradients. Calls with labels, calls on pipeline stages before "
        "the last, and models without MTP are passed on untouched. The config is never changed."
    ),
    upstream="https://github.com/NVIDIA/Megatron-LM/pull/3297",
    fixed_in="0.17.0",
    target="megatron.core.models.gpt.gpt_model",
    affected=(
        Affected(megatron_core=">=0.16,<0.17", device=Device.NPU, source="verl#6374"),
        Affected(megatron_core=">=0.14,<0.17", source="Megatron-LM#3297"),
    ),
    probe=probe,
    replacements={"GPTModel._postprocess": without_labels},
)
