"""A GPTModel with multi-token prediction (MTP) runs without labels, and gives the logits of the model without MTP."""

import inspect
from collections.abc import Callable
from typing import Any

from mcore_autopatch.reproductions import _cpu


def _equal_logits(mtp_num_layers: int, *, training: bool) -> tuple[Any, Any]:
    """Return a model with MTP and its logits, ``[b, s, vocab]``, after comparing them with those of one without."""
    import torch

    batch = _cpu.batch()
    model = _cpu.gpt_model(mtp_num_layers).train(training)
    plain = _cpu.gpt_model(None).train(training)
    with torch.set_grad_enabled(training):
        logits, expected = model(**batch), plain(**batch)
    if logits.shape != expected.shape:
        raise ValueError(f"logits have the shape {tuple(logits.shape)}, expected {tuple(expected.shape)}")
    if not torch.equal(logits, expected):
        raise ValueError(f"logits differ by up to {(logits - expected).abs().max()}")
    return model, logits


def _eval() -> str:
    _, logits = _equal_logits(1, training=False)
    return f"logits {tuple(logits.shape)} equal those without MTP"


def _train() -> str:
    model, logits = _equal_logits(1, training=True)
    logits.square().mean().backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    mtp = {name for name in gradients if name.startswith("mtp.")}
    if missing := sorted(name for name in gradients if gradients[name] is None):
        # megatron's DDP waits for every parameter's gradient when it reduces them during the backward pass.
        raise ValueError(f"no gradient: {', '.join(missing)}")
    trained = _trains_on_inputs()
    if wrong := sorted(name for name in gradients if gradients[name].any() != (trained or name not in mtp)):
        raise ValueError(f"gradient zero in the main model, or not zero in MTP: {', '.join(wrong)}")
    what = "MTP is trained on the input ids" if trained else f"gradients of {len(mtp)} MTP parameters are zero"
    return f"logits equal those without MTP, {what}"


def _trains_on_inputs() -> bool:
    """Tell whether megatron-core takes the input ids for labels where there are none, as it does from 0.19 on."""
    from megatron.core.transformer import multi_token_prediction

    loss = getattr(multi_token_prediction, "process_mtp_loss", None)
    return loss is not None and "input_ids" in inspect.signature(loss).parameters


def _zero() -> str:
    _, logits = _equal_logits(0, training=False)
    return f"logits {tuple(logits.shape)} equal those without MTP"


def _labels() -> str:
    import torch

    batch = _cpu.batch()
    model = _cpu.gpt_model(1).train()
    loss = model(**batch, labels=batch["input_ids"].roll(-1, dims=1)).mean()
    loss.backward()
    values = {name: parameter.grad for name, parameter in model.named_parameters()} | {"loss": loss}
    if wrong := sorted(name for name, value in values.items() if value is None or not value.isfinite().all()):
        raise ValueError(f"missing or not finite: {', '.join(wrong)}")
    if not any(torch.count_nonzero(value) for name, value in values.items() if name.startswith("mtp.")):
        raise ValueError("the MTP loss reached no parameter")
    return f"loss {loss.item():.4f}, {len(values) - 1} gradients are finite"


#: Without labels in evaluation, in training, with mtp_num_layers=0; and with labels, where nothing was ever wrong.
CASES: dict[str, Callable[[], str]] = {"eval": _eval, "train": _train, "zero": _zero, "labels": _labels}
