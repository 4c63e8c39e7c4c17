"""torch 2.8 asks for a serialization format that megatron-core 0.12 does not pass."""

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

from mcore_autopatch.declaration import Affected, Patch


def probe(module: ModuleType) -> bool:
    """Tell whether torch's ``_write_item`` requires the format and the writer of ``module`` never mentions it."""
    wanted = inspect.signature(module._write_item).parameters.get("serialization_format")
    return (
        wanted is not None
        and wanted.default is wanted.empty
        and "serialization_format" not in inspect.getsource(module.FileSystemWriterAsync)
    )


def with_torch_save_format(original: Callable[..., Any]) -> Callable[..., Any]:
    """Fill in ``SerializationFormat.TORCH_SAVE``, the format of every torch before 2.8, where none is passed."""
    from torch.distributed.checkpoint.filesystem import SerializationFormat

    default = SerializationFormat.TORCH_SAVE
    position = list(inspect.signature(original).parameters).index("serialization_format")

    def _write_item(*args: Any, **kwargs: Any) -> Any:
        if len(args) <= position and "serialization_format" not in kwargs:
            kwargs["serialization_format"] = default
        return original(*args, **kwargs)

    return _write_item


patch = Patch(
    title="checkpoints cannot be saved with torch 2.8 and later",
    symptom=("Saving a checkpoint fails. Asynchronous and synchronous saves share the writer and fail alike."),
    errors=(
        ("RuntimeError: Worker failure: _write_item() missing 1 required positional argument: 'serialization_format'"),
    ),
    cause=(
        "megatron-core calls torch's private _write_item, which since torch 2.8.0 has a required last argument "
        "serialization_format. megatron-core 0.12 was written before that."
    ),
    effect=(
        "Items are written with SerializationFormat.TORCH_SAVE, the only format there was before torch 2.8 and the one "
        "that megatron-core 0.13 passes. A caller that passes a format is obeyed."
    ),
    upstream="https://github.com/verl-project/verl/pull/6322",
    fixed_in="0.13.0",
    target="megatron.core.dist_checkpointing.strategies.filesystem_async",
    affected=(
        Affected(megatron_core="==0.12.1", torch="==2.8.0", source="verl#6322"),
        Affected(megatron_core="==0.12.1", torch="==2.9.0", source="verl#6322"),
        Affected(
            megatron_core=">=0.12,<0.13",
            torch=">=2.8",
            source="torch 2.8.0 made serialization_format a required argument of _write_item",
        ),
    ),
    probe=probe,
    # The writer looks this module global up at call time, in whatever process it runs, and nobody pickles it.
    replacements={"_write_item": with_torch_save_format},
)
