"""The fixture for tests over the real torch_npu, on a driver that reports as many NPUs as a test asks for."""

import hashlib
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
from environments import CACHE, fetch

#: torch_npu fits one minor release of torch.
TORCH = "2.13"
TORCH_NPU = "torch-npu==2.13.0"
#: nox -s ascend runs these as well; they would make the tests that everybody runs too long.
collect_ignore = [] if os.environ.get("TEST_ASCEND") else ["test_import_orders.py"]


@pytest.fixture(scope="session")
def npu():
    """Return a function: number of NPUs, overlays -> keywords for ``python``, with torch_npu among the overlays."""
    torch = torch_folder()
    try:
        overlay = fetch(TORCH_NPU)
    except subprocess.CalledProcessError as error:
        unavailable(f"pip cannot download {TORCH_NPU} for this Python: {error}")
    # Also by what builds it, so that a change there does not go unnoticed.
    recipe = hashlib.sha256(Path(driver_stub.__file__).read_bytes()).hexdigest()[:8]
    driver = CACHE / f"ascend-driver-torch-{importlib.metadata.version('torch')}-{overlay.name}-{recipe}"
    if not driver.is_dir():
        driver_stub.build(torch, overlay / "torch_npu", driver)

    def keywords(count, *overlays):
        return {
            "overlays": (overlay, *overlays),
            "LD_LIBRARY_PATH": driver_stub.library_path(driver),
            "FAKE_NPU_COUNT": count,
            "FAKE_NPU_LOG": "driver.log",  # in the folder that ``python`` runs in, which is new for every test
            "TORCH_DEVICE_BACKEND_AUTOLOAD": 1,
        }

    return keywords


def torch_folder():
    """Return the folder of the installed torch, which torch_npu must be able to work with on this machine."""
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
    folder = Path(spec.origin).parent
    if any(folder.glob("lib/libtorch_cuda*")):
        unavailable("torch_npu refuses a CUDA build of torch")
    return folder


def unavailable(reason):
    """Skip, except in continuous integration, where nobody would see that these tests no longer run."""
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(reason)
    pytest.skip(reason)
