"""The fake megatron-core with patches of its own, for processes that nobody hands a program to."""

import ast
import os
import subprocess
import sys

import pytest
from environments import FAKE, clean_environment

#: Imports a target and tells where that happened, how often it is patched, and how many finders of ours there are.
PROGRAM = """
import os, sys
def tell(_=None):
    import megatron.core.models.model as m
    finders = sum(getattr(f, "__name__", "") == "_mcore_autopatch" for f in sys.meta_path)
    return os.getpid(), m.function(1), getattr(m.function, "__mcore_autopatch__", ()), finders
"""
PATCH = """
from mcore_autopatch import Affected, Patch
def tagging(original):
    return lambda *args, **kwargs: ("one", *original(*args, **kwargs))
patch = Patch(title="t", symptom="s", cause="c", effect="e", upstream="u", target="megatron.core.models.model",
    affected=(Affected(megatron_core=">=0.1", source="x"),), probe=lambda module: True,
    replacements={"function": tagging})
"""


def pytest_configure(config):
    config.addinivalue_line("markers", "launcher: installs a launcher such as Ray (`nox -s launchers`)")


def pytest_collection_modifyitems(config, items):
    """Leave out what installs launchers unless it is asked for: pytest -m launcher."""
    if "launcher" not in config.option.markexpr:
        left_out = [item for item in items if item.get_closest_marker("launcher")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture
def environment(tmp_path):
    """Return the environment variables for a process that finds the fake megatron-core, ``program`` and one patch."""
    (tmp_path / "patches").mkdir()
    (tmp_path / "patches" / "one.py").write_text(PATCH)
    (tmp_path / "program.py").write_text(PROGRAM)
    # A torch that is no more than a version would break launchers that are made of torch.
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake" / "megatron").symlink_to(FAKE / "megatron")
    return clean_environment(
        PYTHONPATH=os.pathsep.join([str(tmp_path), str(tmp_path / "fake")]), MCORE_AUTOPATCH_PATH=tmp_path / "patches"
    )


@pytest.fixture
def launch(environment, tmp_path):
    """Return a function that runs a command and returns the tuples that it prints; ``program`` goes into main.py."""

    def run(*arguments, program="", executable=sys.executable, timeout=240, **variables):
        if program:
            (tmp_path / "main.py").write_text(program)
        done = subprocess.run(
            [executable, *map(str, arguments)],
            env={**environment, **variables},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        assert "mcore-autopatch" not in done.stderr
        return [ast.literal_eval(line) for line in done.stdout.splitlines() if line.startswith("(")]

    return run


@pytest.fixture
def patched_in():
    """Return a function that checks that so many processes have told, and that each is patched once."""

    def check(told, processes):
        assert len({pid for pid, *_ in told}) == processes
        assert {tuple(rest) for _, *rest in told} == {(("one", "function", 1, 1), ("one",), 1)}

    return check
