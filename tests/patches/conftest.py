"""Fixtures for tests of the patches over real megatron-core releases, each run in an interpreter of its own."""

import importlib
import json
import socket
import tempfile
from pathlib import Path

import pytest

OUTCOME = """
import importlib, json, sys
patch, target = sys.argv[1:]
importlib.import_module(target)
from mcore_autopatch import outcomes
(outcome,) = [outcome for outcome in outcomes() if outcome.patch == patch]
print(json.dumps([outcome.status.name, outcome.reason and outcome.reason.name]))
"""


@pytest.fixture
def outcome(python, megatron_core):
    """Return a function: a megatron-core release, a patch, variables -> names of the patch's status and reason."""

    def run(version, patch, **variables):
        target = importlib.import_module(f"mcore_autopatch.patches.{patch.replace('-', '_')}").patch.target
        done = python("-c", OUTCOME, patch, target, overlays=[megatron_core(version)], check=0, **variables)
        return tuple(json.loads(done.stdout.splitlines()[-1]))

    return run


@pytest.fixture
def reproduce(python, megatron_core):
    """Return a function that runs cases of a reproduction with a release: case -> detail, or the error.

    A process left behind would keep the pipes open, so that the run would end in its timeout.
    """

    def run(version, reproduction, *cases, launcher=(), check, **variables):
        command = [*launcher, "-m", "mcore_autopatch.reproductions", reproduction, *cases]
        # Sockets are made in there, and the path of a socket must be short.
        with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as scratch:
            done = python(*command, overlays=[megatron_core(version)], check=check, TMPDIR=scratch, **variables)
            assert not list(Path(scratch).glob("mcore-autopatch-*")), "a checkpoint folder is left"
        results = [json.loads(line) for line in done.stdout.splitlines()]
        assert [result["id"] for result in results] == [reproduction] * len(results)
        return {result["case"]: result["detail"] if result["ok"] else result["error"] for result in results}

    return run


@pytest.fixture
def torchrun():
    """Arguments for Python that run what follows in two processes of torchrun, over the loopback interface."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-addr=127.0.0.1", f"--master-port={port}"
