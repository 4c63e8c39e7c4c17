"""Versions of megatron-core and torch as loaded in this process, and the device. Imports neither of them."""

import importlib
import sys
from typing import Any

from packaging.version import Version

from mcore_autopatch.declaration import Device


def megatron_core() -> str | None:
    """Version of the megatron-core that is loaded, as it states it; None when it states none."""
    info: Any
    try:
        # The package itself may still be half executed, but this leaf of constants can be imported on its own.
        info = importlib.import_module("megatron.core.package_info")
    except ImportError:
        info = sys.modules.get("megatron.core")
    return _stated(info)


def torch() -> str | None:
    """Version of the torch that is loaded; None when none is."""
    return _stated(sys.modules.get("torch"))


def _stated(module: object) -> str | None:
    version = getattr(module, "__version__", None)
    # One that was read from a file may end in a newline, and is none the worse for it.
    return None if version is None else str(version).strip()


def parsed(version: str | None) -> Version | None:
    """Parse a version by PEP 440; None for what does not follow it."""
    try:
        return None if version is None else Version(version)
    except (TypeError, ValueError):  # no text; InvalidVersion; more digits than Python makes a number of
        return None


def device() -> Device:
    """Kind of accelerator that the loaded torch works with, found without creating a device context."""
    loaded: Any = sys.modules.get("torch")
    # transfer_to_npu makes torch.cuda answer for the NPU, so the NPU is asked first.
    npu = getattr(loaded, "npu", None)
    if npu is not None and npu.is_available():
        return Device.NPU
    cuda = getattr(loaded, "cuda", None)
    built = getattr(loaded, "version", None)
    if cuda is None or not (getattr(built, "cuda", None) or getattr(built, "hip", None)):
        return Device.CPU
    if cuda.is_initialized():
        return Device.CUDA
    # torch.cuda.is_available() would ask the CUDA runtime, after which a forked child can no longer use CUDA.
    counters = (getattr(cuda, name, None) for name in ("_device_count_nvml", "_device_count_amdsmi"))
    return Device.CUDA if any(counter is not None and counter() > 0 for counter in counters) else Device.CPU
