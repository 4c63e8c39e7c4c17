"""Patches that other distributions and folders bring: same contract, own origin, and no harm when they are broken."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from environments import ROOT, clean_environment, pip_install

FAKE = Path(__file__).parent / "fake_megatron"
DIVIDE = """
import megatron.core.utils
try:
    megatron.core.utils.divide(8, 0)
except Exception as error:
    print(type(error).__name__, megatron.core.utils.divide(8, 2))
import mcore_autopatch
print(*(f"{o.patch} {o.status.name} {o.origin}" for o in mcore_autopatch.outcomes() if "vendor" in o.patch))
"""
FILE = """
from mcore_autopatch import Affected, Patch
def probe(module): return True
def tagged(original): return lambda *args, **kwargs: ("loose", *original(*args, **kwargs))
patch = Patch(title="t", symptom="s", cause="c", effect="e", upstream="u", target="megatron.core.models.model",
    affected=(Affected(megatron_core=">=0.1", source="x"),), probe=probe, replacements={"function": tagged})
"""
LOAD = """
import torch, megatron.core.models.model as m, mcore_autopatch
print(m.function(1))
for o in mcore_autopatch.outcomes():
    if o.origin != "mcore-autopatch":
        print(o.patch, o.status.name, o.origin, o.detail.split(";")[0], sep=" | ")
"""


@pytest.fixture
def vendor(make_venv, wheel, tmp_path):
    """Return the interpreter of an environment with the example package, and torch as in this environment."""
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, EXAMPLE], check=True)
    interpreter = make_venv(wheel)
    (packages,) = (interpreter.parents[1] / "lib").glob("python*/site-packages")
    (packages / "torch_of_the_tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip_install(interpreter, "--no-deps", *tmp_path.glob("vendor_patches-*.whl"))
    return interpreter


EXAMPLE = ROOT / "examples" / "vendor_patches"


@pytest.mark.real
def test_the_example_is_applied_by_pip_install_alone_and_gone_after_uninstall(vendor, python, megatron_core):
    overlays = [megatron_core("0.16.1")]
    done = python("-c", DIVIDE, executable=vendor, overlays=overlays, check=0)
    assert done.stdout == "ValueError 4\nvendor-divide APPLIED vendor-patches 1.0\n"
    listed = python("-m", "mcore_autopatch", "explain", "vendor-divide", executable=vendor, check=0).stdout
    assert "integer modulo by zero" in " ".join(listed.split())

    # The same package with a module that cannot be imported.
    (module,) = vendor.parents[1].rglob("vendor_patches/divide.py")
    module.write_text("raise SystemExit('broken on purpose')\n")
    done = python("-c", DIVIDE, executable=vendor, overlays=overlays, check=0)
    assert done.stdout == "ZeroDivisionError 4\nvendor-divide FAILED vendor-patches 1.0\n"
    told = python("-m", "mcore_autopatch", "status", executable=vendor, overlays=overlays, check=0).stdout
    assert "vendor-divide: failed [from vendor-patches 1.0]" in told
    assert "broken on purpose" in told

    uninstall = [sys.executable, "-m", "pip", "--python", vendor, "uninstall", "-qy", "vendor-patches"]
    subprocess.run(uninstall, check=True, env=clean_environment())
    done = python("-c", DIVIDE, executable=vendor, overlays=overlays, check=0)
    assert (done.stdout, "mcore-autopatch" in done.stderr) == ("ZeroDivisionError 4\n\n", False)


def test_a_loose_file_is_applied_and_named_by_its_path(python, tmp_path):
    (tmp_path / "loose_one.py").write_text(FILE)
    (tmp_path / "_hidden.py").write_text("raise ValueError")
    (tmp_path / "notes.txt").write_text("not Python")
    done = python("-c", LOAD, overlays=[FAKE], check=0, MCORE_AUTOPATCH_PATH=tmp_path)
    first, second = done.stdout.splitlines()
    assert first == "('loose', 'function', 1, 1)"
    assert second.startswith(f"loose-one | APPLIED | {tmp_path / 'loose_one.py'} | megatron-core 0.16.1")
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("raises", "import nonexistent", "ModuleNotFoundError: No module named 'nonexistent'"),
        ("exits", "raise SystemExit(3)", "SystemExit: 3"),
        ("empty", "", "PatchDefinitionError: empty: the module must define patch = Patch(…)"),
        ("syntax", "def", "SyntaxError: invalid syntax"),
        ("row", FILE.replace(">=0.1", "0.1"), "PatchDefinitionError: Affected('x'): Invalid specifier: '0.1'"),
        ("mtp_inference", FILE, "PatchDefinitionError: mtp-inference: the id is taken by a patch of mcore-autopatch"),
        ("Upper", FILE, "PatchDefinitionError: Upper: an id is made of lower-case words joined by hyphens"),
        ("hangs_on", FILE.replace("return True", "raise BaseException('probe')"), "BaseException: probe"),
    ],
)
def test_a_broken_file_is_a_failed_outcome_that_names_it(python, tmp_path, name, text, problem):
    (tmp_path / f"{name}.py").write_text(text)
    done = python("-c", LOAD, overlays=[FAKE], check=0, MCORE_AUTOPATCH_PATH=tmp_path)
    first, second = done.stdout.splitlines()
    assert first == "('function', 1, 1)"
    assert f" | FAILED | {tmp_path / name}.py | " in second
    assert problem in done.stderr


def test_a_folder_that_is_not_there_is_named_and_the_next_is_read(python, tmp_path):
    (tmp_path / "loose.py").write_text(FILE)
    path = os.pathsep.join([str(tmp_path / "gone"), "", str(tmp_path)])
    done = python("-c", LOAD, overlays=[FAKE], check=0, MCORE_AUTOPATCH_PATH=path)
    assert done.stdout.startswith("('loose', 'function', 1, 1)\n")
    assert str(tmp_path / "gone") in done.stderr
    assert "No such file" in done.stderr


def test_two_files_of_one_id_in_two_folders_the_first_one_counts(python, tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.py").write_text(FILE.replace("loose", folder))
    path = os.pathsep.join([str(tmp_path / "a"), str(tmp_path / "b")])
    done = python("-c", LOAD, overlays=[FAKE], check=0, MCORE_AUTOPATCH_PATH=path)
    assert done.stdout.startswith("('a', 'function', 1, 1)\nsame | APPLIED | ")
    assert "same | FAILED | " in done.stdout
    assert f"the id is taken by a patch of {tmp_path / 'a' / 'same.py'}" in done.stderr


def test_patches_of_others_are_found_without_torch(python, tmp_path):
    shutil.copy(EXAMPLE / "src" / "vendor_patches" / "divide.py", tmp_path / "divide.py")
    code = "import sys; sys.modules['torch'] = None; from mcore_autopatch import catalogue; "
    code += "print(catalogue.load().patches['divide'].origin)"
    assert python("-c", code, check=0, MCORE_AUTOPATCH_PATH=tmp_path).stdout == f"{tmp_path / 'divide.py'}\n"
