"""Folders, releases and environment variables that tests in fresh interpreters share."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Releases are fetched once and kept; the folder is ignored by git.
CACHE = ROOT / ".cache"


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
