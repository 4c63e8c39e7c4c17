"""Looks at a fresh interpreter of this environment, as a training run would start one: a child process tells."""

import contextlib
import dataclasses
import importlib
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import mcore_autopatch
from mcore_autopatch import _startup, catalogue, doctor, reporting, snapshot
from mcore_autopatch.declaration import Patch
from mcore_autopatch.matching import Combination, match
from mcore_autopatch.outcome import Outcome, Status

#: Seconds that importing megatron-core and what the user names may take.
LIMIT = 300


def look(modules: Sequence[str] = (), **variables: str) -> dict[str, Any]:
    """Start an interpreter with the options of this one, import ``modules`` and all targets in it, and let it tell.

    ``variables`` are added to its environment.

    Returns the document of snapshot.py with ``problems`` (modules that cannot be imported) and ``findings`` (see
    doctor.py). Where the hook is not active, what the patches would do is found by calling install() there, and
    ``hook`` is False.

    Raises RuntimeError with the child's last words if it dies.
    """
    options = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    command = [sys.executable, *options, "-m", __name__, *modules]
    # Reports are for the runs that the user asked about, not for this one.
    environment = {**os.environ, **variables}
    environment.pop("MCORE_AUTOPATCH_REPORT", None)
    done = subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, errors="replace", check=False, timeout=LIMIT, env=environment
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise RuntimeError(f"a fresh interpreter ended with exit code {done.returncode}: {last}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _tell(modules: Sequence[str]) -> dict[str, Any]:
    """Import everything and describe this process."""
    active = _startup.registered()
    targets = sorted({patch.target for patch in catalogue.load().patches.values()})
    early = [target for target in targets if target in sys.modules]
    problems = {}
    # What is imported here belongs to somebody else's program, and so do its warnings.
    warnings.simplefilter("ignore")
    for module in [*modules, *targets]:
        try:
            if module in targets and not active:
                mcore_autopatch.install()
            importlib.import_module(module)
        except Exception as error:
            problems[module] = f"{type(error).__name__}: {error}"
    # A release without the module is no problem where none of the module's patches is for that release.
    if "megatron.core" in sys.modules:
        wanted = {patch.target for patch in _waiting() if not _not_for_this(patch)}
        problems = {module: text for module, text in problems.items() if module in wanted or module not in targets}
    active = active and not _startup.failure
    findings = doctor.findings(active=active, early=early)
    told = {**snapshot.document(), "hook": active, "problems": problems}
    return {**told, "findings": [dataclasses.asdict(finding) for finding in findings]}


def _waiting() -> list[Patch]:
    patches = catalogue.load().patches
    return [patches[outcome.patch] for outcome in reporting.outcomes() if outcome.status is Status.WAITING]


def _not_for_this(patch: Patch) -> bool:
    """Tell whether no row of a waiting patch matches what is loaded, and record that as its outcome."""
    _, reason, detail = match(patch, Combination.loaded())
    if reason:
        skipped = Outcome(patch=patch.id, status=Status.SKIPPED, reason=reason, detail=detail, origin=patch.origin)
        reporting.record(skipped)
    return reason is not None


def _main() -> None:
    # megatron-core prints; stdout has to hold the answer and nothing else.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with contextlib.closing(answer):
        reporting.silence()
        print(json.dumps(_tell(sys.argv[1:])), file=answer)


if __name__ == "__main__":
    _main()
