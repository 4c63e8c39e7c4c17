"""Stands for torch: a version and what device detection asks."""

import os
from types import SimpleNamespace

__version__ = os.environ.get("FAKE_TORCH_VERSION", "2.13.0+cpu")
version = SimpleNamespace(cuda=os.environ.get("FAKE_CUDA_BUILD"), hip=None)
cuda = SimpleNamespace(is_initialized=lambda: False, _device_count_nvml=lambda: int(os.environ.get("FAKE_GPUS", "-1")))
if os.environ.get("FAKE_NPUS"):
    npu = SimpleNamespace(is_available=lambda: os.environ["FAKE_NPUS"] != "0")
