"""Runs the reproductions on this machine's own packages, without the patches and with them."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Seconds that all cases of one reproduction may take.
LIMIT = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One case of a reproduction, both ways."""

    patch: str
    case: str
    #: What happened without the patches and with them: "ok (…)" or the error.
    without: str
    with_patch: str
    #: "fixed", "unchanged" (fine either way), "not present here", "cannot run here", "NOT FIXED" or "HARMED".
    verdict: str

    @property
    def bad(self) -> bool:
        """Tell whether a patch that should help does not."""
        return self.verdict.isupper()


def absent(patch: str, detail: str) -> Verdict:
    """Return the verdict on a bug that, by the outcome of its patch, this environment does not have."""
    return Verdict(patch=patch, case="", without="", with_patch=detail, verdict="not present here")


def verify(patch: str, expected: str, progress: Callable[[str], None]) -> Iterator[Verdict]:
    """Run the reproduction of ``patch`` twice at the same time, on the CPU, and compare case by case.

    ``expected`` is the status that the patch has here where the hook is active, or has been called by hand.
    """
    with tempfile.TemporaryDirectory(prefix="mcore-autopatch-", ignore_cleanup_errors=True) as scratch:
        switches = {"MCORE_AUTOPATCH": "0"}, {"MCORE_AUTOPATCH": "1", "MCORE_AUTOPATCH_ENABLE": patch}
        children = [_start(patch, Path(scratch), number, each) for number, each in enumerate(switches)]
        try:
            started = time.monotonic()
            while any(child.poll() is None for child in children):
                if time.monotonic() - started > LIMIT:
                    break
                progress(f"{patch}: {time.monotonic() - started:.0f} s")
                time.sleep(0.2)
        finally:
            for child in children:
                _end(child)
        without, with_patch = (_results(Path(scratch), number) for number in range(2))
    for case in dict.fromkeys([*without, *with_patch]):
        yield _compare(patch, case, expected, without.get(case), with_patch.get(case))


def _start(patch: str, scratch: Path, number: int, switches: dict[str, str]) -> "subprocess.Popen[bytes]":
    dropped = ("MCORE_AUTOPATCH", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    # No device of this machine takes part, so it can be done beside a training run.
    hidden = dict.fromkeys(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"), "")
    environment |= {**hidden, **switches, "OMP_NUM_THREADS": "1", "TMPDIR": str(scratch), "GLOO_SOCKET_IFNAME": "lo"}
    if sys.platform == "darwin":
        environment["GLOO_SOCKET_IFNAME"] = "lo0"
    command = [sys.executable, "-W", "ignore", "-m", "mcore_autopatch.reproductions", patch]
    with open(scratch / f"out{number}", "wb") as out, open(scratch / f"err{number}", "wb") as err:  # noqa: PTH123
        return subprocess.Popen(  # noqa: S603
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, start_new_session=True
        )


def _end(child: "subprocess.Popen[bytes]") -> None:
    """Kill the child and whatever it has started and left behind."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # all gone, as they should be
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _results(scratch: Path, number: int) -> dict[str, Any]:
    lines = (scratch / f"out{number}").read_text(errors="replace").splitlines()
    # What a sitecustomize or a .pth file prints comes first.
    results = {result["case"]: result for result in (json.loads(line) for line in lines if line.startswith('{"id": '))}
    if not results:
        last = (scratch / f"err{number}").read_text(errors="replace").strip().splitlines() or ["it said nothing"]
        results["start"] = {"ok": False, "error": last[-1]}
    return results


def _compare(patch: str, case: str, expected: str, without: Any, with_patch: Any) -> Verdict:
    silent = {"ok": False, "error": "no result: the process ended or took too long"}
    without, with_patch = without or silent, with_patch or silent
    if with_patch["ok"]:
        untouched = "unchanged" if expected == "applied" else "not present here"
        verdict = untouched if without["ok"] else "fixed"
    elif expected in ("applied", "failed"):
        verdict = "HARMED" if without["ok"] else "NOT FIXED"
    else:
        verdict = "cannot run here"
    one, other = (f"ok ({each['detail']})" if each["ok"] else each["error"] for each in (without, with_patch))
    return Verdict(patch=patch, case=case, without=one, with_patch=other, verdict=verdict)
