"""Runs reproductions in processes forked from one that has imported megatron-core: `cells.py FOLDER {ID: [CASE…], …}`.

Importing takes most of the time of a reproduction. Nothing has been imported where a patch acts while a module is
imported, and where a bug depends on the device, whose driver does not work on in a forked process. Each process leaves
FOLDER/ID.jsonl: one line per case, then its own outcome in that process.
"""

import contextlib
import gc
import importlib
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

#: Seconds for all cases of one reproduction.
LIMIT = 400


def main(folder, wanted):
    from mcore_autopatch import catalogue

    patches = catalogue.load().patches
    anew = [name for name in wanted if patches[name].execution or any(row.device for row in patches[name].affected)]
    for name in anew:
        _fork(folder, name, wanted[name])
    # A release may lack some of the targets, and one of the bugs fails the first import of megatron.core.
    targets = {patch.target for patch in patches.values()} - {patches[name].target for name in anew}
    for target in ["torch", *sorted(targets)] if len(anew) < len(wanted) else ():
        with contextlib.suppress(Exception):
            importlib.import_module(target)
    for name in wanted:
        if name not in anew:
            _fork(folder, name, wanted[name])


def _fork(folder, name, cases):
    process = os.fork()
    if not process:
        status = 1
        try:
            status = _run(folder, name, cases)
        finally:
            os._exit(status)
    started = time.monotonic()
    while os.waitpid(process, os.WNOHANG) == (0, 0):
        if time.monotonic() - started > LIMIT:
            os.kill(process, signal.SIGKILL)
        time.sleep(0.02)
    # Some of the bugs leave processes behind that wait for ever.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)


def _run(folder, name, cases):
    os.setsid()
    # megatron-core's queues wait for their workers when they are collected, for those that have died too.
    gc.disable()
    # Sockets are made in there, and the path of a socket must be short.
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as scratch:
        os.environ["TMPDIR"] = tempfile.tempdir = scratch
        with (folder / f"{name}.jsonl").open("wb") as results, (folder / f"{name}.log").open("wb") as log:
            os.dup2(results.fileno(), 1)
            os.dup2(log.fileno(), 2)
        from mcore_autopatch import catalogue, outcomes
        from mcore_autopatch.reproductions.__main__ import main as reproduce

        with os.fdopen(os.dup(1), "a") as told:
            status = reproduce([name, *cases])
            # Some reproductions leave everything to processes of their own.
            with contextlib.suppress(Exception):
                importlib.import_module(catalogue.load().patches[name].target)
            for outcome in outcomes():
                if outcome.patch == name:
                    print(json.dumps({"outcome": outcome.status.value, "detail": outcome.detail}), file=told)
            print(json.dumps({"applied": [o.patch for o in outcomes() if o.status.name == "APPLIED"]}), file=told)
    return status


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
