"""The fixture for tests over the real torch_npu, on a driver that reports as many NPUs as a test asks for."""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import driver_stub
import pytest
from environments import npu_overlay_and_variables

#: torch_npu fits one minor release of torch.
TORCH = "2.13"
TORCH_NPU = "torch-npu==2.13.0"
#: nox -s ascend runs these as well; they would make the tests that everybody runs too long.
collect_ignore = [] if os.environ.get("TEST_ASCEND") else ["test_import_orders.py"]


@pytest.fixture(scope="session")
def npu():
    """Return a function: number of NPUs, overlays -> keywords for ``python``, with torch_npu among the overlays."""
    check_machine()
    try:
        overlay, variables = npu_overlay_and_variables(0)
    except subprocess.CalledProcessError as error:
        unavailable(f"pip cannot download {TORCH_NPU} for this Python: {error}")

    def keywords(count, *overlays):
        # The log is in the folder that ``python`` runs in, which is new for every test.
        asked = {"FAKE_NPU_COUNT": count, "FAKE_NPU_LOG": "driver.log"}
        return {"overlays": (overlay, *overlays), **variables, **asked}

    return keywords


def check_machine():
    """Skip unless torch_npu can work with the installed torch on this machine."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in ("x86_64", "aarch64"):
        unavailable(f"torch_npu is made for Linux on x86-64 and aarch64, and this is {sys.platform} on {machine}")
    if missing := [tool for tool in driver_stub.TOOLS if shutil.which(tool) is None]:
        unavailable(f"building the stand-in driver takes {', '.join(missing)}")
    if "ASCEND_HOME_PATH" in os.environ:
        unavailable("there is a real CANN toolkit here, and a stand-in must not get in its way")
    spec = importlib.util.find_spec("torch")  # finds it without importing it
    if spec is None or not importlib.metadata.version("torch").startswith(f"{TORCH}."):
        unavailable(f"{TORCH_NPU} takes torch {TORCH}")
    if any(Path(spec.origin).parent.glob("lib/libtorch_cuda*")):
        unavailable("torch_npu refuses a CUDA build of torch")


def unavailable(reason):
    """Skip, except in continuous integration, where nobody would see that these tests no longer run."""
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(reason)
    pytest.skip(reason)
