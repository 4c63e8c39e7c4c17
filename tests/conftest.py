"""Fixtures for tests over real packages: a fresh interpreter, and megatron-core releases laid over PYTHONPATH."""

import os
import subprocess
import sys

import pytest
from environments import FAKE, PREAMBLE, ROOT, clean_environment, fetch_release, pip_install

#: Takes long, and runs only if it is named: `python -m nox -s no_harm`.
collect_ignore = ["no_harm"]


@pytest.fixture(scope="session")
def megatron_core():
    """Return a function: version of megatron-core -> folder for PYTHONPATH."""
    return fetch_release


@pytest.fixture
def python(tmp_path):
    """Return a function that runs a fresh interpreter of this environment and returns the completed process.

    ``overlays`` are folders for PYTHONPATH; keywords in upper case are environment variables.
    """

    def run(*arguments, overlays=(), timeout=240, check=None, executable=sys.executable, **variables):
        # nox -s floors lays the oldest dependencies that we accept over all tests.
        if overlays := [*overlays, *filter(None, [os.environ.get("TEST_OVERLAY")])]:
            variables["PYTHONPATH"] = os.pathsep.join(map(str, overlays))
        done = subprocess.run(
            [executable, *map(str, arguments)],
            env=clean_environment(**variables),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check is not None:
            assert done.returncode == check, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run


@pytest.fixture
def run(python):
    """Return a function that runs code after the preamble, over the fake megatron-core, and returns the process.

    What it prints on stderr is compared unless the test asks for None.
    """

    def run_code(code, *, stderr="", check=0, options=(), overlays=(), **variables):
        command = [*options, "-c", PREAMBLE + code]
        done = python(*command, overlays=[FAKE, *overlays], check=check, timeout=60, **variables)
        if stderr is not None:
            assert done.stderr == stderr
        return done

    return run_code


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """Build the wheel of this project."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT], check=True)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def make_venv(tmp_path_factory):
    """Return a function that makes a virtual environment, installs requirements, and returns its interpreter."""

    def make(*requirements):
        folder = tmp_path_factory.mktemp("venv")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        interpreter = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        if requirements:
            pip_install(interpreter, *requirements)
        return interpreter

    return make


@pytest.fixture(scope="session")
def bare(make_venv):
    """Interpreter of a virtual environment with nothing in it."""
    return make_venv()


@pytest.fixture(scope="session")
def installed(make_venv, wheel):
    """Interpreter of a virtual environment with the built wheel and its dependencies in it."""
    return make_venv(wheel)
