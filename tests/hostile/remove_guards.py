"""Takes the guards of guards.toml away, one at a time, and runs the tests that have to fail without them.

`python -m hostile.remove_guards [WORD…]` works on the project that holds it: run it in a copy that is installed
editable, as `nox -s guards` does. Words choose the guards whose reason contains one of them.
"""

import re
import subprocess
import sys
from pathlib import Path

from environments import ROOT, load_toml

HOSTILE = Path(__file__).parent
GUARDS = load_toml(HOSTILE / "guards.toml")["guard"]
UNGUARDED = load_toml(HOSTILE / "guards.toml")["unguarded"]


def main(words):
    wanted = [guard for guard in GUARDS if not words or any(word in guard["why"] for word in words)]
    missed = []
    for number, guard in enumerate(wanted, 1):
        unfailing = without(guard)
        missed += unfailing
        print(f"[{number}/{len(wanted)}] {guard['why']}: {'NOT SEEN by ' if unfailing else 'seen by '}", end="")
        print(", ".join(unfailing or guard["tests"]), flush=True)
    print(f"{len(wanted)} guards, {len(missed)} tests that do not see theirs gone")
    return 1 if missed or not wanted else 0


def without(guard):
    """Return the tests that succeed without the guard."""
    path = ROOT / "src" / guard["file"]
    code = path.read_text(encoding="utf-8")
    path.write_text(code.replace(guard["text"], guard["instead"]), encoding="utf-8")
    try:
        command = [sys.executable, "-m", "pytest", "-q", "-rf", "-p", "no:cacheprovider", "--tb=no"]
        command += [f"tests/hostile/{test}" for test in guard["tests"]]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    finally:
        path.write_text(code, encoding="utf-8")
    failed = set(re.findall(r"^FAILED tests/hostile/(\S+?::\w+)", done.stdout, re.MULTILINE))
    return [test for test in guard["tests"] if test not in failed]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
