"""What every patch owes on every release of megatron-core: one interpreter per release checks all of them."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from environments import releases

from mcore_autopatch import catalogue

PATCHES = catalogue.load().patches
RELEASES = [name for name, release in releases()["releases"].items() if "torch-2.13.0" in release["environments"]]
#: For the session on Python 3.12, with another torch.
NEWER = ["0.16.1", "0.17.1", "0.18.2", "0.19.2"]

CHECK = """
import importlib, inspect, json, os, pickle, sys, warnings
warnings.simplefilter("ignore")
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
from mcore_autopatch import catalogue, doctor, install, outcomes
from mcore_autopatch.attributes import locate, look_up
patches = catalogue.load().patches
missing = []
for target in sorted({patch.target for patch in patches.values()}):
    try:
        importlib.import_module(target)
    except ModuleNotFoundError as error:
        missing.append(error.name)
told = {o.patch: " ".join(filter(None, (o.status.name, o.reason and o.reason.name))) for o in outcomes()}
def check(before, broken):
    for outcome in outcomes():
        patch = patches[outcome.patch]
        for path in patch.replacements if outcome.status.name == "APPLIED" else ():
            module = sys.modules[patch.target]
            owner, name, raw = locate(module, path)
            new, old = look_up(module, path), look_up(module, path).__wrapped__
            before[patch.target, path] = raw
            if inspect.signature(new) != inspect.signature(old):
                broken.append(f"{path}: the signature has changed")
            if (new.__name__, new.__doc__) != (old.__name__, old.__doc__):
                broken.append(f"{path}: name or docstring has changed")
            if pickle.loads(pickle.dumps(new)) is not new:
                broken.append(f"{path} does not pickle by its name")
    install()
    for (target, path), raw in before.items():
        if locate(sys.modules[target], path)[2] is not raw:
            broken.append(f"{path}: a second application has changed it")
    return broken + [f.what for f in doctor.findings(active=True) if "is the function that patch" in f.what]
details = [o.detail for o in outcomes() if o.status.name == "FAILED"]
print(json.dumps({"outcomes": told, "broken": check({}, []) + details, "missing": missing}), file=out, flush=True)
"""


def expected(patch, release):
    """Read the table of the patch's own test file."""
    path = Path(__file__).parent / "patches" / f"test_{patch.replace('-', '_')}.py"
    spec = importlib.util.spec_from_file_location(f"table_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.EXPECTED.get(release)


@pytest.mark.real
@pytest.mark.parametrize("release", RELEASES if sys.version_info < (3, 12) else NEWER)
def test_every_patch_has_the_outcome_of_its_table_and_keeps_its_promises(python, megatron_core, release):
    done = python("-W", "ignore", "-c", CHECK, overlays=[megatron_core(release)], check=0)
    told = json.loads(done.stdout)
    assert told["broken"] == []
    table = {patch: expected(patch, release) for patch in PATCHES}
    # A release that a table does not name must not be touched. The module need not even exist there.
    wrong = {
        patch: outcome
        for patch, outcome in told["outcomes"].items()
        if (outcome != table[patch] if table[patch] else not outcome.startswith(("SKIPPED", "WAITING")))
    }
    assert wrong == {}, f"expected { ({patch: table[patch] for patch in wrong}) }"
