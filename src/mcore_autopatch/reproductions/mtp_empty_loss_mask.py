"""A micro-batch in which no token counts has finite multi-token prediction (MTP) gradients: zeros."""

import functools
from collections.abc import Callable
from typing import Any

from mcore_autopatch.reproductions import _cpu


def _train(columns: int, **config: Any) -> dict[str, Any]:
    """Train with a loss mask, ``[2, 8]``, that is 1 in the first columns, and include the MTP loss of the log."""
    from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper

    mask = (_cpu.batch()["position_ids"] < columns).float()
    model = _cpu.gpt_model(1, **config)
    MTPLossLoggingHelper.tracker.clear()
    values = _cpu.train(model, loss_mask=mask)
    tracker = MTPLossLoggingHelper.tracker
    (logged,) = tracker["values"] if "values" in tracker else tracker["loss_values"]
    if not logged.isfinite():
        raise ValueError(f"the MTP loss in the log is {logged}")
    return {**values, "logged": logged}


def _empty(columns: int, **config: Any) -> str:
    """Compare with the gradients of the model without MTP."""
    values = _train(columns, **config)
    mtp = {name for name in values if name.startswith("mtp.")} | {"logged"}
    if wrong := sorted(name for name in mtp if values[name].any()):
        raise ValueError(f"not zero: {', '.join(wrong)}")
    main = {name: value for name, value in values.items() if name not in mtp}
    digest = _cpu.compare(main, _cpu.train(_cpu.gpt_model(None, **config)))
    return f"the MTP loss has zero gradients, those of the main loss are the same: {digest}"


def _some() -> str:
    values = _train(5)
    if not any(values[name].any() for name in values if name.startswith("mtp.")):
        raise ValueError("the MTP loss reached no parameter")
    return f"the MTP loss has gradients, all are finite: {_cpu.digest(values)}"


#: No token counts; none but the first, which is rolled away; no token with a loss summed over tokens, where only the
#: log was wrong; and some tokens, where nothing was.
CASES: dict[str, Callable[[], str]] = {
    "empty": functools.partial(_empty, 0),
    "first": functools.partial(_empty, 1),
    "per-token": functools.partial(_empty, 0, calculate_per_token_loss=True),
    "some": _some,
}
