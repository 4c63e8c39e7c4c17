"""The persistent checkpoint worker selects a CUDA device before anything else, and dies where there is none."""

import ast
import inspect
import textwrap
from collections.abc import Callable
from types import ModuleType
from typing import Any

from mcore_autopatch.declaration import Affected, Device, Patch

_SELECTION = "torch.cuda.set_device(rank % torch.cuda.device_count())"


def probe(module: ModuleType) -> bool:
    """Tell whether ``PersistentAsyncCaller.async_loop`` selects a CUDA device, whether there is one or not."""
    source = inspect.getsource(module.PersistentAsyncCaller.async_loop)
    (function,) = ast.parse(textwrap.dedent(source)).body
    # Not under a condition: as a statement of the function itself.
    return isinstance(function, ast.FunctionDef) and _SELECTION in map(ast.unparse, function.body)


class _View:
    """A module some of whose attributes are replaced, for nobody but those who look at it through this."""

    def __init__(self, module: Any, **replaced: Any) -> None:
        vars(self).update(replaced, _module=module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def on_the_device_there_is(original: Callable[..., Any]) -> Callable[..., Any]:
    """Where there is no CUDA device, let the worker select ``rank % torch.npu.device_count()``, or nothing on a CPU.

    Its module sees ``torch`` through a view for that one selection, and torch itself from then on; torch.cuda is not
    touched. Raises what selecting the NPU raises.
    """
    import torch

    namespace: dict[str, Any] = inspect.unwrap(original).__globals__

    def async_loop(*args: Any, **kwargs: Any) -> Any:
        if torch.cuda.device_count():
            return original(*args, **kwargs)
        npu: Any = getattr(torch, "npu", None)
        count = npu.device_count() if npu is not None else 0

        def take_back() -> None:
            if namespace["torch"] is view:
                namespace["torch"] = torch

        def set_device(device: int) -> None:
            take_back()
            if count:
                npu.set_device(device)

        cuda = _View(torch.cuda, device_count=lambda: count or 1, set_device=set_device)
        namespace["torch"] = view = _View(torch, cuda=cuda)
        try:
            return original(*args, **kwargs)
        finally:
            take_back()

    return async_loop


patch = Patch(
    title="the persistent checkpoint worker dies where there is no CUDA device",
    symptom=(
        "On an NPU or a CPU, the first save through AsyncCallsQueue(persistent=True) never returns. The spawned worker "
        "has ended with an error, and the trainer waits for it."
    ),
    errors=("ZeroDivisionError: integer modulo by zero",),
    cause=(
        "PersistentAsyncCaller.async_loop, which is what the worker executes, starts with torch.cuda.set_device("
        "rank % torch.cuda.device_count()), and the count is 0 where torch.cuda does not answer for the device."
    ),
    effect=(
        "Without a CUDA device the worker selects the NPU rank % torch.npu.device_count(), and on a CPU it selects "
        "nothing. With one, and where torch_npu.contrib.transfer_to_npu lets torch.cuda answer for the NPU, nothing "
        "changes."
    ),
    upstream=(
        "https://github.com/NVIDIA/Megatron-LM/blob/core_v0.16.0/"
        "megatron/core/dist_checkpointing/strategies/async_utils.py"
    ),
    target="megatron.core.dist_checkpointing.strategies.async_utils",
    affected=tuple(
        Affected(
            megatron_core=">=0.16,<0.20",
            device=device,
            source="megatron-core 0.16.0 selects a CUDA device in PersistentAsyncCaller.async_loop",
        )
        for device in (Device.NPU, Device.CPU)
    ),
    probe=probe,
    # The worker's process is handed the static method by name, and looks it up in the module that is patched there too.
    replacements={"PersistentAsyncCaller.async_loop": on_the_device_there_is},
)
