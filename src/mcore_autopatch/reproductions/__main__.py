"""``python -m mcore_autopatch.reproductions ID [CASE…]``: run a reproduction, one JSON line per case on stdout."""

import difflib
import importlib
import json
import os
import pkgutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from typing import TextIO

from mcore_autopatch import reproductions

#: Seconds that one case may take.
LIMIT = 120


def main(arguments: list[str]) -> int:
    """Run the cases named in ``arguments``, or all of them. Return 0, 1 if one failed, or 2 for an unknown name."""
    known = {
        module.name.replace("_", "-"): module.name
        for module in pkgutil.iter_modules(reproductions.__path__)
        if not module.name.startswith("_")
    }
    if not arguments:
        return _refuse(f"usage: python -m {reproductions.__name__} ID [CASE…]; known ids: {', '.join(known)}")
    reproduction, *wanted = arguments
    if reproduction not in known:
        return _refuse(f"there is no reproduction {reproduction!r}; {_nearest(reproduction, known)}")
    cases: dict[str, Callable[[], str]] = importlib.import_module(
        f"{reproductions.__name__}.{known[reproduction]}"
    ).CASES
    for case in wanted:
        if case not in cases:
            return _refuse(f"{reproduction} has no case {case!r}; {_nearest(case, cases)}")

    # Whatever megatron-core prints, here and in child processes, goes to stderr: stdout holds results and nothing else.
    with os.fdopen(os.dup(1), "w") as output:
        os.dup2(2, 1)
        results = [_run(reproduction, case, cases[case], output) for case in wanted or cases]
    return 0 if all(results) else 1


def _run(reproduction: str, case: str, function: Callable[[], str], output: TextIO) -> bool:
    """Run one case, print its result unless this is one of the further ranks, and tell whether it succeeded."""
    result: dict[str, object] = {"id": reproduction, "case": case}
    try:
        # Some of the bugs make megatron-core wait for a process that is gone.
        signal.signal(signal.SIGALRM, _expire)
        signal.alarm(LIMIT)
        try:
            result.update(ok=True, detail=function())
        finally:
            signal.alarm(0)
    except Exception as error:
        traceback.print_exc()
        result.update(ok=False, error=f"{type(error).__name__}: {error}")
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps(result), file=output, flush=True)
    return bool(result["ok"])


def _expire(_signal: int, _frame: object) -> None:
    raise TimeoutError(f"not finished after {LIMIT} seconds")


def _nearest(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(names)}"


def _refuse(text: str) -> int:
    print(text, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
