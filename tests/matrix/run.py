"""Measures the matrix: which release has which bug, without us and with us, in one environment.

`python -m matrix.run ENVIRONMENT` runs every cell of the environment (see releases.toml) with the packages of this
interpreter, and writes docs/matrix.json anew from all cells that have been run. Cells that have been run with the same
code are not run again. `--boundaries` runs the releases at which a bug begins or ends, and compares what comes out with
docs/matrix.json instead.
"""

import argparse
import concurrent.futures
import hashlib
import importlib
import importlib.metadata
import itertools
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from environments import CACHE, ROOT, clean_environment, fetch_release, npu_overlay_and_variables, releases

from mcore_autopatch import catalogue
from mcore_autopatch.patches import __path__ as patches_path
from mcore_autopatch.reproductions import __path__ as reproductions_path

PATCHES = catalogue.load().patches
STORE = CACHE / "matrix"
MATRIX = ROOT / "docs" / "matrix.json"
PICTURE = MATRIX.with_suffix(".svg")
#: The environment in which every case of every reproduction is run.
BASE = "torch-2.13.0"
#: Environment, release and patch of the cells that this project began with (verl#6322, verl#6374).
SEEDS = {("torch-2.8.0", "0.12.1", "serialization-format"), ("torch-2.9.0", "0.12.1", "serialization-format")}
SEEDS |= {("npu", release, "mtp-inference") for release in ("0.16.0", "0.16.1")}
#: Outcomes that must not be.
BAD = ("NOT FIXED", "HARMED")
#: What becomes of a case; a cell is what the first of these is that one of its cases is.
ORDER = (*BAD, "fixed", "another bug", "cannot run", "not affected")
#: Distributions whose versions are told.
TOLD = ("torch", "torch-npu", "triton", "numpy", "wrapt", "packaging")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("environment", choices=releases()["environments"])
    parser.add_argument("--boundaries", action="store_true")
    parser.add_argument("--release", action="append", help="this release only; may be repeated")
    parser.add_argument("--patch", action="append", choices=PATCHES, help="this patch only; may be repeated")
    parser.add_argument("--jobs", type=int, default=min(4, (os.cpu_count() or 1) + 1))
    options = parser.parse_args()
    here = [name for name, release in releases()["releases"].items() if options.environment in release["environments"]]
    patches = set(options.patch or PATCHES) & patches_of(options.environment)
    wanted = {(release, patch) for release in options.release or here for patch in patches}
    known = {}
    if options.boundaries:
        known = {
            (c["megatron-core"], c["patch"]): c for c in read()["cells"] if c["environment"] == options.environment
        }
        wanted &= set(boundaries(known, here))
    cells = run(options.environment, wanted, options.jobs, fresh=options.boundaries)
    if not options.boundaries:
        write()
    wrong = [cell for cell in cells if cell["outcome"] in BAD]
    wrong += [
        cell for cell in cells if known and cell["outcome"] != known[cell["megatron-core"], cell["patch"]]["outcome"]
    ]
    for cell in wrong:
        print(f"WRONG: {cell}")
    print(f"{options.environment}: {len(cells)} cells, {len(wrong)} wrong")
    return 1 if wrong or not cells else 0


def patches_of(environment):
    """Return the ids of the patches that are measured in an environment."""
    return set(releases()["environments"][environment].get("patches", PATCHES))


def boundaries(known, order):
    """Yield the (release, patch) on both sides of each change in what becomes of a patch."""
    for patch in PATCHES:
        tested = [release for release in order if (release, patch) in known]
        for one, other in itertools.pairwise(tested):
            if known[one, patch]["outcome"] != known[other, patch]["outcome"]:
                yield from ((one, patch), (other, patch))


def run(environment, wanted, jobs, *, fresh):
    """Run the cells that are not in the store, both ways; return all of ``wanted``."""
    todo, cells = {}, []
    for release, patch in sorted(wanted, key=lambda pair: list(releases()["releases"]).index(pair[0])):
        stored = _stored(environment, release, patch)
        if stored and not fresh:
            cells.append(stored)
        else:
            todo.setdefault(release, []).append(patch)
    done = itertools.count(len(cells) + 1)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        both = [pool.submit(_measure, environment, release, sorted(ids)) for release, ids in todo.items()]
        for future in concurrent.futures.as_completed(both):
            for raw in future.result():
                cell = _cell(*raw)
                why = f" ({cell['without']})" if cell.get("without") else ""
                place = f"{environment} {cell['megatron-core']} {cell['patch']}"
                print(f"[{next(done)}/{len(wanted)}] {place}: {cell['outcome']}{why}", flush=True)
                cells.append(cell)
                path = _path(environment, cell["megatron-core"], cell["patch"])
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps({"code": _code(cell["patch"]), "results": raw, "versions": _versions()}))
    return cells


def _measure(environment, release, ids):
    with tempfile.TemporaryDirectory() as scratch:
        results = []
        for switch in ("0", "1"):
            folder = Path(scratch, switch)
            folder.mkdir()
            variables = {"MCORE_AUTOPATCH": switch, "GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "ignore"}
            # torch.compile would start a pool of processes in each of ours.
            variables["TORCHINDUCTOR_COMPILE_THREADS"] = 1
            variables["MCORE_AUTOPATCH_ENABLE"] = ",".join(patch.id for patch in PATCHES.values() if patch.opt_in)
            overlays = [fetch_release(release)]
            if "torch_npu" in releases()["environments"][environment]:
                overlay, npu = npu_overlay_and_variables(1)
                overlays.append(overlay)
                variables |= npu
            variables["PYTHONPATH"] = os.pathsep.join(map(str, overlays))
            wanted = json.dumps({name: _cases(environment, name) for name in ids})
            program = [sys.executable, Path(__file__).with_name("cells.py"), folder, wanted]
            started = time.monotonic()
            with (folder / "log").open("wb") as log:
                subprocess.run(program, env=clean_environment(**variables), stdout=log, stderr=log, check=False)
            results.append({name: _results(folder, name) for name in ids})
            print(f"  {environment} {release} MCORE_AUTOPATCH={switch}: {time.monotonic() - started:.0f} s", flush=True)
        return [(environment, release, name, *(result[name] for result in results)) for name in ids]


def _cases(environment, patch):
    """Return the cases of a reproduction that an environment runs.

    All of them in the first place, and where the patch depends on torch; elsewhere the first says whether torch matters
    after all.
    """
    cases = list(importlib.import_module(f"mcore_autopatch.reproductions.{patch.replace('-', '_')}").CASES)
    depends = any(row.torch for row in PATCHES[patch].affected)
    return cases if environment == BASE or depends else cases[:1]


def _results(folder, name):
    path = folder / f"{name}.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    cases = {line["case"]: line for line in lines if "case" in line}
    if not cases:
        said = [
            line
            for log in (f"{name}.log", "log")
            if (folder / log).exists()
            for line in (folder / log).read_text(errors="replace").splitlines()
        ]
        cases["start"] = {"ok": False, "error": (said or ["it said nothing"])[-1]}
    for case in cases.values():
        case["said"] = _plain(case["detail"] if case["ok"] else case["error"])
    return {
        "cases": cases,
        "outcome": "waiting",
        "detail": "",
        "applied": [],
        **{k: v for line in lines if "case" not in line for k, v in line.items()},
    }


def _plain(text):
    """Return the first line of a message, without what differs from run to run or from machine to machine."""
    text = text.strip().split("\n", 1)[0]
    return re.sub(r"(?<![:/\w])(/[\w.+-]+)+/", "", text)[:200]


def _cell(environment, release, name, without, with_us):
    verdicts = {}
    silent = {"ok": False, "said": "no result: the process ended or took too long"}
    for case in dict.fromkeys([*without["cases"], *with_us["cases"]]):
        before, after = (side["cases"].get(case, silent) for side in (without, with_us))
        applied = with_us["outcome"] == "applied"
        if before["ok"] and after["ok"]:
            verdicts[case] = "not affected"
        elif after["ok"]:
            verdicts[case] = "fixed" if applied else "another bug"
        elif applied or before["ok"]:
            verdicts[case] = "HARMED" if before["ok"] else "NOT FIXED"
        else:
            verdicts[case] = "cannot run"
    outcome = min(verdicts.values(), key=ORDER.index)
    example = next(case for case, verdict in verdicts.items() if verdict == outcome)
    cell = {"environment": environment, "megatron-core": release, "patch": name, "outcome": outcome}
    cell["patch status"] = with_us["outcome"]
    if outcome != "not affected":
        cell["without"] = without["cases"].get(example, silent)["said"]
    cell["with"] = with_us["cases"].get(example, silent)["said"]
    if outcome == "another bug":
        cell["by"] = with_us["applied"]
    cell["cases"] = verdicts
    if (environment, release, name) in SEEDS:
        cell["seed"] = True
    return cell


def _path(environment, release, patch):
    return STORE / environment / release / f"{patch}.json"


def _stored(environment, release, patch):
    path = _path(environment, release, patch)
    if not path.exists():
        return None
    stored = json.loads(path.read_text())
    return _cell(*stored["results"]) if stored["code"] == _code(patch) else None


def _code(patch):
    """Return a digest of the code that a cell depends on, apart from the machinery."""
    stem = patch.replace("-", "_")
    files = [Path(patches_path[0], f"{stem}.py"), Path(reproductions_path[0], f"{stem}.py")]
    files += sorted(Path(reproductions_path[0]).glob("_*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _versions():
    versions = {"python": platform.python_version()}
    for name in TOLD:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def read():
    return json.loads(MATRIX.read_text())


def write():
    """Write docs/matrix.json anew, in the order of releases.toml.

    What the store has of an environment replaces what the file had of it, once it is complete.
    """
    matrix, versions, cells = read(), {}, []
    for name in releases()["environments"]:
        tested = [release for release, told in releases()["releases"].items() if name in told["environments"]]
        paths = [_path(name, release, patch) for release in tested for patch in PATCHES if patch in patches_of(name)]
        if all(path.exists() for path in paths):
            stored = [json.loads(path.read_text()) for path in paths]
            versions[name] = stored[-1]["versions"]
            cells += [json.dumps(_cell(*each["results"])) for each in stored]
        elif name in matrix["environments"]:
            versions[name] = matrix["environments"][name]
            cells += [json.dumps(cell) for cell in matrix["cells"] if cell["environment"] == name]
    if "npu" in versions:  # it is laid over the environment, and not installed in it
        versions["npu"]["torch-npu"] = releases()["environments"]["npu"]["torch_npu"]
    text = '{"environments": {\n'
    text += ",\n".join(f"{json.dumps(name)}: {json.dumps(told)}" for name, told in versions.items())
    text += '\n},\n"cells": [\n' + ",\n".join(cells) + "\n]}\n"
    MATRIX.write_text(text)


def stamp():
    """Return what the picture says of its sources, and what differs when they do."""
    sources = MATRIX.read_bytes() + Path(__file__).with_name("draw.py").read_bytes()
    return f"drawn from {hashlib.sha256(sources).hexdigest()}"


if __name__ == "__main__":
    sys.exit(main())
