"""Folders, releases and environment variables that tests in fresh interpreters share."""

import contextlib
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where pytest brings it
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
#: Releases are fetched once and kept; the folder is ignored by git.
CACHE = ROOT / ".cache"
#: A small megatron-core and torch, and what puts patches for them in the place of the catalogue.
FAKE = ROOT / "tests" / "fake_megatron"
#: Runs first in the tests of the engine.
PREAMBLE = """
import sys, importlib, mcore_autopatch
from fake_patches import MODEL, Affected, patch, tagging, use
"""
#: Prints what became of each patch.
OUTCOME = """
outcomes = [(o.patch, o.status.name, o.reason.name if o.reason else "None") for o in mcore_autopatch.outcomes()]
print("; ".join(map(" ".join, outcomes)))
"""


@functools.cache
def releases():
    """Return releases.toml: the releases of megatron-core and the environments that they are tested in."""
    return load_toml(ROOT / "tests" / "releases.toml")


def load_toml(path):
    """Return what a TOML file holds."""
    return tomllib.loads(path.read_text())


def fetch_release(version):
    """Unpack a release of megatron-core into the cache and return the folder, for PYTHONPATH."""
    wanted = releases()["releases"].get(version, {}).get("python", "")
    here = f"3.{sys.version_info.minor}"
    return fetch(f"megatron-core=={version}", python=None if wanted in ("", here) else wanted)


def fetch(requirement, *, python=None):
    """Unpack the wheel of one release into the cache, as pip finds it, and return the folder."""
    tag = sys.implementation.cache_tag if python is None else f"python-{python}"
    folder = CACHE / tag / requirement.replace("==", "-")
    if not folder.is_dir():
        # Of this process alone until complete, so that a stopped download leaves nothing that looks finished.
        downloads = folder.with_name(f"{folder.name}.download.{os.getpid()}")
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", downloads]
        command += ["--python-version", python] if python else []
        subprocess.run([*command, requirement], check=True)
        (wheel,) = downloads.glob("*.whl")
        partial = downloads / "unpacked"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(partial)
        with contextlib.suppress(OSError):  # another process was faster
            partial.rename(folder)
        shutil.rmtree(downloads)
    return folder


def npu_overlay_and_variables(count):
    """Return what lets a process import the real torch_npu on a driver that reports ``count`` NPUs.

    A folder for PYTHONPATH and environment variables. Needs gcc, nm and ldd, and the torch that torch_npu is made for.
    """
    from ascend import driver_stub

    overlay = fetch(f"torch-npu=={releases()['environments']['npu']['torch_npu']}")
    # Also by what builds it, so that a change there does not go unnoticed.
    recipe = hashlib.sha256(Path(driver_stub.__file__).read_bytes()).hexdigest()[:8]
    driver = CACHE / f"ascend-driver-torch-{importlib.metadata.version('torch')}-{overlay.name}-{recipe}"
    if not driver.is_dir():
        torch = Path(importlib.util.find_spec("torch").origin).parent
        driver_stub.build(torch, overlay / "torch_npu", driver)
    variables = {"LD_LIBRARY_PATH": driver_stub.library_path(driver), "FAKE_NPU_COUNT": count}
    return overlay, {**variables, "TORCH_DEVICE_BACKEND_AUTOLOAD": 1}


def clean_environment(**variables):
    """Return the environment of this process without what would change a fresh interpreter, plus ``variables``."""
    unwanted = ("PYTHON", "MCORE_AUTOPATCH", "COVERAGE", "PYTEST", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_")
    # nox points TMPDIR into a deep folder, and the path of a socket in there would be too long for the system.
    unwanted += ("TMPDIR",)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    # No accelerator of the machine takes part.
    kept.update(CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
    return {**kept, **{name: str(value) for name, value in variables.items()}}


def pip_install(interpreter, *arguments):
    """Install into the environment of ``interpreter`` with the pip of this one."""
    pip = [sys.executable, "-m", "pip", "--python", interpreter, "install", "-q"]
    subprocess.run([*pip, *map(str, arguments)], check=True)


def instructions(interpreter, *arguments, **variables):
    """Count the instructions of one run of an interpreter: the figure for a cost that a busy machine does not change.

    None where valgrind is not installed.
    """
    if shutil.which("valgrind") is None:
        return None
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", interpreter, *arguments]
    # The order of sets and dictionaries changes the count.
    environment = clean_environment(PYTHONHASHSEED=0, **variables)
    done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, check=True)
    return int(re.findall(r"Collected : (\d+)", done.stderr)[-1])
