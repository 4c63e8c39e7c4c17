"""What runs at the start is where Python looks for it, however the package is installed, and goes when it goes."""

import hashlib
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest
from environments import ROOT, clean_environment, pip_install

import mcore_autopatch

#: All that is at the root of the wheel. A change of the two lines, or another file there, has to be made here too.
AT_THE_ROOT = {
    "_mcore_autopatch.py": (ROOT / "src" / "_mcore_autopatch.py").read_bytes(),
    "mcore_autopatch.pth": (
        b'import os; os.environ.get("MCORE_AUTOPATCH") == "0" or __import__("_mcore_autopatch").init()\n'
    ),
    "mcore_autopatch.start": b"_mcore_autopatch:init\n",
}


def at_the_root(path):
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if "/" not in name}
        (record,) = (name for name in archive.namelist() if name.endswith(".dist-info/RECORD"))
        recorded = [line.split(",")[0] for line in archive.read(record).decode().splitlines()]
    assert set(files) <= set(recorded)
    return files


def test_the_wheel_has_the_start_up_files_at_its_root_and_nothing_else(wheel):
    assert at_the_root(wheel) == AT_THE_ROOT


@pytest.mark.parametrize("readme", ["README.md", "README.zh-CN.md"])
def test_the_hashes_of_the_start_up_files_are_published(readme):
    hashes = [f"{hashlib.sha256(content).hexdigest()}  {name}" for name, content in AT_THE_ROOT.items()]
    assert "\n".join(["```", *hashes, "```"]) in (ROOT / readme).read_text()


def test_a_wheel_built_from_the_sdist_has_the_same_files(wheel, tmp_path):
    subprocess.run([sys.executable, "-m", "build", "--sdist", "-o", tmp_path, ROOT], check=True, capture_output=True)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    source = tmp_path / sdist.name.removesuffix(".tar.gz")
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, source], check=True)
    (rebuilt,) = tmp_path.glob("*.whl")
    assert at_the_root(rebuilt) == AT_THE_ROOT
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(rebuilt) as other:
        assert sorted(one.namelist()) == sorted(other.namelist())


def test_the_wheel_holds_this_package_and_its_metadata_only(wheel):
    with zipfile.ZipFile(wheel) as archive:
        folders = {name.partition("/")[0] for name in archive.namelist() if "/" in name}
    assert folders == {"mcore_autopatch", f"mcore_autopatch-{mcore_autopatch.__version__}.dist-info"}


def test_two_builds_of_the_wheel_are_equal_byte_for_byte(wheel, tmp_path):
    # From a copy with other times, as another machine has.
    # Guard: SOURCE_DATE_EPOCH set for one of the two makes them differ.
    source = tmp_path / "source"
    shutil.copytree(ROOT, source, copy_function=shutil.copy, ignore=shutil.ignore_patterns(".*", "__pycache__"))
    pip_wheel = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, source]
    subprocess.run(pip_wheel, check=True)
    (rebuilt,) = tmp_path.glob("*.whl")
    assert rebuilt.read_bytes() == wheel.read_bytes()


@pytest.mark.parametrize("editable", [False, True], ids=["wheel", "editable"])
def test_installing_activates_the_hook_and_uninstalling_leaves_nothing(editable, wheel, make_venv, python):
    interpreter = make_venv()
    pip_install(interpreter, *(["--no-deps", "-e", ROOT] if editable else ["--no-deps", wheel]))
    count = "import sys; print(sum(f is sys.modules.get('_mcore_autopatch') for f in sys.meta_path))"
    assert python("-c", count, executable=interpreter, check=0).stdout == "1\n"
    uninstall = [sys.executable, "-m", "pip", "--python", interpreter, "uninstall", "-qy", "mcore-autopatch"]
    subprocess.run(uninstall, check=True, env=clean_environment())
    done = python("-c", count, executable=interpreter, check=0)
    assert (done.stdout, done.stderr) == ("0\n", "")
    assert list(interpreter.parents[1].rglob("*mcore*")) == []


def test_the_start_up_line_is_read_after_that_of_an_editable_install():
    files = ["mcore_autopatch.pth", "_editable_impl_mcore_autopatch.pth"]
    assert max(files) == "mcore_autopatch.pth"


def test_run_time_dependencies_stay_at_wrapt_and_packaging(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = archive.read(name).decode()
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist") and "extra ==" not in line]
    assert [line.split()[1].rstrip("<>=!.0123456789") for line in required] == ["packaging", "wrapt"]
