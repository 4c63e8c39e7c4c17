"""Arming and applying under options of the interpreter. That the hook is there at all is in test_startup.py."""

import sys
import sysconfig
from pathlib import Path

import pytest
from environments import FAKE, OUTCOME

import mcore_autopatch

OPTIONS = [
    "-I",
    "-E",
    "-s",
    "-O",
    "-OO",
    "-bb",
    "-X dev",
    "-X frozen_modules=off",
    "-X importtime",
    "-W error",
    "-u -B",
]
OPTIONS += ["-P"] if sys.version_info >= (3, 11) else []
OPTIONS += ["-X no_debug_ranges"] if sys.version_info >= (3, 11) else []
#: The whole of it: all kinds of replacements, an execution, a failure, a reload.
EVERYTHING = f"""
import sys
sys.path.insert(0, {str(FAKE)!r})
import contextlib, importlib, mcore_autopatch
from fake_patches import MODEL, patch, use
attributes = ("function", "Model.method", "Model.static", "Model.of_class")
use(
    patch(attributes=attributes, additions={{"added": 1}}),
    patch("two", probe=lambda module: 1 / 0),
    patch("zzz", replacements={{}}, execution=contextlib.nullcontext),
)
import megatron.core.models.model as m
importlib.reload(m)
print(m.function(1), m.Model().method(2), m.Model.static(3), m.Model.of_class(4), m.added)
{OUTCOME}
"""
EXPECTED = """\
('one', 'function', 1, 1) ('one', 'method', 2) ('one', 'static', 3) ('one', 'Model', 4) 1
one APPLIED None; two FAILED None; zzz APPLIED None
"""


@pytest.mark.parametrize("options", OPTIONS)
def test_everything_works_under_the_option(python, options):
    done = python(*options.split(), "-c", EVERYTHING, check=0)
    assert done.stdout == EXPECTED
    said = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    assert said[0].startswith("mcore-autopatch: two: failed: ZeroDivisionError")
    assert said[-1] == "  ZeroDivisionError: division by zero"
    assert sum("Traceback" in line for line in said) == 1


def test_without_site_nothing_is_active_and_install_works_by_hand(python):
    # Appended, lest a module of theirs hides one of the standard library.
    packages = [str(Path(mcore_autopatch.__file__).parents[1]), sysconfig.get_path("purelib")]
    by_hand = EVERYTHING.replace("import megatron", "print(mcore_autopatch.install() == ()); import megatron")
    code = f"import sys; sys.path += {packages}; print(len(sys.meta_path))\n{by_hand}"
    done = python("-S", "-c", code, check=0)
    assert done.stdout == f"3\nFalse\n{EXPECTED}"


@pytest.mark.real
@pytest.mark.parametrize("release", ["0.12.1", "0.16.1"])
def test_optimised_bytecode_leads_to_the_same_decisions(python, megatron_core, release):
    code = f"""
import importlib, torch, mcore_autopatch
from mcore_autopatch import catalogue
for patch in catalogue.load().patches.values():
    try:
        importlib.import_module(patch.target)
    except ModuleNotFoundError:
        pass
{OUTCOME}
"""
    plain, optimised = (
        python(*options, "-W", "ignore", "-c", code, overlays=[megatron_core(release)], check=0).stdout
        for options in ([], ["-OO"])
    )
    assert "APPLIED" in plain
    assert optimised == plain
