"""Measure everything side by side and write the results: `python -m benchmarks`. See docs/benchmarks.md.

Run it from the root of the project, in an environment with the built wheel, torch and matplotlib, such as that of
`python -m nox -s benchmarks`, and on a machine that does nothing else.
"""

import argparse
import importlib.metadata
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import document, start_up
from tests.environments import ROOT, clean_environment, fetch_release

RESULTS = ROOT / "benchmarks" / "results.json"


def _run(script, name, *, overlay=None, **variables):
    if overlay:
        variables["PYTHONPATH"] = overlay
    command = [sys.executable, "-W", "ignore", ROOT / "benchmarks" / script, name]
    done = subprocess.run(command, env=clean_environment(**variables), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{script} {name}: exit {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def _start(options):
    with tempfile.TemporaryDirectory() as folder:
        build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT]
        subprocess.run(build, check=True)
        (wheel,) = Path(folder).glob("*.whl")
        return start_up.measure(options.python or start_up.PYTHONS, Path(folder), wheel, options.rounds, _say)


def _imports(options):
    return {
        "miss": _run("in_process.py", "misses"),
        "hooked": _run("in_process.py", "hooked"),
        "arming": min((_run("in_process.py", "arming") for _ in range(options.rounds)), key=lambda told: told["ms"]),
    }


def _calls(_options):
    return _run("in_process.py", "calls")


def _megatron(options):
    """Alternate, so that what else the machine does strikes both alike, and take the best of each."""
    turns = range(max(2, options.rounds // 4))
    saving = {}
    for version in ("0.12.1", "0.13.0"):
        runs = {"with": {}, "without": {"MCORE_AUTOPATCH": 0}}
        speeds = {which: [] for which in runs}
        for _ in turns:
            for which, variables in runs.items():
                speeds[which].append(_run("speed.py", "save", overlay=fetch_release(version), **variables))
        saving[version] = {which: max(each) for which, each in speeds.items()}
    forward = {version: [] for version in ("0.16.1", "0.17.1")}
    for _ in turns:
        for version, times in forward.items():
            times.append(_run("speed.py", "evaluate", overlay=fetch_release(version)))
    return {"save_mb_per_s": saving, "evaluate_ms": {version: min(times) for version, times in forward.items()}}


PARTS = {"start": _start, "imports": _imports, "calls": _calls, "megatron": _megatron}


def _say(text):
    print(text, file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help=f"measure these only and keep the other results: {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=20, help="how often a start is timed; the least counts")
    parser.add_argument("--python", action="append", help="measure starts of this one only: 3.12; may be repeated")
    parser.add_argument("--write", action="store_true", help="measure nothing, and write the page and the plot again")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(unknown)}")
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for part in () if options.write else options.parts or PARTS:
        _say(f"measuring: {part}")
        results[part] = PARTS[part](options)
        results["versions"] = {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in ("mcore-autopatch", "torch", "wrapt", "packaging")},
        }
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    document.write(results, ROOT / "docs")


if __name__ == "__main__":
    main()
