"""torch 2.7 asks for the transforms of a storage writer, which megatron-core 0.11 does not know."""

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

from mcore_autopatch.declaration import Affected, Patch


def probe(module: ModuleType) -> bool:
    """Tell whether torch's ``_write_item`` starts with the transforms and the writer passes the stream there."""
    first = next(iter(inspect.signature(module._write_item).parameters), "")
    return first == "transforms" and "_write_item(stream, " in inspect.getsource(module.FileSystemWriterAsync)


def without_transforms(original: Callable[..., Any]) -> Callable[..., Any]:
    """Pass transforms that transform nothing, and from torch 2.8 on ``SerializationFormat.TORCH_SAVE``, where missing.

    Source: FileSystemWriter of torch, whose defaults these are.
    """
    from torch.distributed.checkpoint import filesystem

    # They keep no state, so that one for all items will do, as in torch's own writer.
    nothing = filesystem._StorageWriterTransforms()
    parameters = inspect.signature(original).parameters
    defaults: dict[str, Any] = {}
    if "serialization_format" in parameters:
        defaults["serialization_format"] = filesystem.SerializationFormat.TORCH_SAVE

    def _write_item(*args: Any, **kwargs: Any) -> Any:
        if "transforms" not in kwargs and not (args and hasattr(args[0], "transform_save_stream")):
            args = (nothing, *args)
        if len(args) < len(parameters):
            kwargs = {**defaults, **kwargs}
        return original(*args, **kwargs)

    return _write_item


patch = Patch(
    title="checkpoint writes of megatron-core 0.11 fail with torch 2.7 and later",
    symptom=("Saving a checkpoint fails, from torch 2.8 on with the second of these texts."),
    errors=(
        "RuntimeError: Worker failure: _write_item() missing 1 required positional argument: 'storage_key'",
        (
            "RuntimeError: Worker failure: _write_item() missing 2 required positional arguments: 'storage_key' and "
            "'serialization_format'"
        ),
    ),
    cause=(
        "megatron-core calls torch's private _write_item, which since torch 2.7.0 has a required first argument "
        "transforms and since torch 2.8.0 a required last argument serialization_format. megatron-core up to 0.11 was "
        "written before both."
    ),
    effect=(
        "Items are written untransformed and with SerializationFormat.TORCH_SAVE, which is what every torch before 2.7 "
        "did and what torch's own writer does by default. A caller that passes either is obeyed."
    ),
    upstream="https://github.com/modelscope/ms-swift/issues/4111",
    fixed_in="0.12.0",
    target="megatron.core.dist_checkpointing.strategies.filesystem_async",
    affected=(Affected(megatron_core=">=0.9,<0.12", torch=">=2.7", source="modelscope/ms-swift#4111"),),
    probe=probe,
    # The writer looks this module global up at call time, in whatever process it runs, and nobody pickles it.
    replacements={"_write_item": without_transforms},
)
