"""The checkpoint writer waits for CUDA after copying the tensors to the host, whether there is CUDA or not."""

import ast
import inspect
import textwrap
from collections.abc import Callable
from types import ModuleType
from typing import Any

from mcore_autopatch.declaration import Affected, Device, Patch


def probe(module: ModuleType) -> bool:
    """Tell whether ``preload_tensors`` calls ``torch.cuda.synchronize()`` on no other condition than non_blocking."""
    source = inspect.getsource(module.FileSystemWriterAsync.preload_tensors)
    (function,) = ast.parse(textwrap.dedent(source)).body
    condition = "if non_blocking:\n    torch.cuda.synchronize()"
    return isinstance(function, ast.FunctionDef) and condition in map(ast.unparse, function.body)


def with_blocking_copies(original: Callable[..., Any]) -> Callable[..., Any]:
    """Where torch.cuda answers for no device, make copies that need not be waited for. Raises what copying raises."""
    import torch

    signature = inspect.signature(original)

    def preload_tensors(*args: Any, **kwargs: Any) -> Any:
        if torch.cuda.is_available():
            return original(*args, **kwargs)
        try:
            call = signature.bind(*args, **kwargs)
        except TypeError:
            return original(*args, **kwargs)  # raises the same, in its own words
        call.arguments["non_blocking"] = False
        return original(*call.args, **call.kwargs)

    return preload_tensors


patch = Patch(
    title="the checkpoint writer waits for CUDA where there is none",
    symptom=(
        "On an NPU or a CPU, the spawned worker of AsyncCallsQueue(persistent=True) ends in "
        "FileSystemWriterAsync.preload_tensors, and the trainer waits for it. On a CPU, other saves fail alike."
    ),
    errors=("AssertionError: Torch not compiled with CUDA enabled",),
    cause=(
        "preload_tensors copies to the host without blocking and then calls torch.cuda.synchronize(). A trainer on an "
        "NPU has imported torch_npu.contrib.transfer_to_npu, which makes that an NPU's; the worker has not."
    ),
    effect=(
        "Where torch.cuda answers for no device the copies are blocking ones, after which there is nothing to wait "
        "for. The tensors are the same. With CUDA, and with transfer_to_npu, nothing changes."
    ),
    upstream=(
        "https://github.com/NVIDIA/Megatron-LM/blob/core_v0.12.0/"
        "megatron/core/dist_checkpointing/strategies/filesystem_async.py"
    ),
    target="megatron.core.dist_checkpointing.strategies.filesystem_async",
    affected=tuple(
        Affected(
            megatron_core=">=0.12,<0.20",
            device=device,
            source="megatron-core 0.12.0 calls torch.cuda.synchronize in FileSystemWriterAsync.preload_tensors",
        )
        for device in (Device.NPU, Device.CPU)
    ),
    probe=probe,
    # It is handed to the worker by name, and looked up in the module that is patched there too.
    replacements={"FileSystemWriterAsync.preload_tensors": with_blocking_copies},
)
