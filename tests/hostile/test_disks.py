"""Disks that are full or read-only, and folders that are not what they should be.

Paths that cannot exist are in test_fleet.py ("a path that cannot be written is one warning").
"""

import subprocess

import pytest
from environments import FAKE, PREAMBLE

CODE = f"{PREAMBLE}use(patch())\nimport megatron.core.models.model as m\nprint(m.function(1))"


@pytest.fixture
def mounted(tmp_path):
    """Return a function that mounts a small file system, with options, at a folder that it returns."""
    folders = []

    def mount(options):
        folder = tmp_path / f"disk{len(folders)}"
        folder.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, check=False
        )
        if done.returncode:
            pytest.skip("mounting needs root")
        folders.append(folder)
        return folder

    yield mount
    for folder in folders:
        subprocess.run(["umount", "-l", folder], check=True)


def one_warning(done, path):
    assert done.stdout == "('one', 'function', 1, 1)\n"
    assert done.stderr.startswith(f"mcore-autopatch: MCORE_AUTOPATCH_REPORT: cannot write {path}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("options", ["ro", "size=4k"], ids=["read-only", "full"])
def test_a_report_on_a_disk_that_takes_none_is_one_warning_and_leaves_nothing(python, mounted, options):
    # Guards: _write() catches what the disk says, and deletes the half of a file.
    disk = mounted(options)
    if options != "ro":
        with pytest.raises(OSError, match="No space"):
            (disk / "ballast").write_bytes(bytes(8192))
    before = sorted(disk.iterdir())
    done = python("-c", CODE, overlays=[FAKE], check=0, MCORE_AUTOPATCH_REPORT=disk / "{pid}.json")
    one_warning(done, f"{disk}/")
    assert sorted(disk.iterdir()) == before


def test_a_full_device_is_one_warning(python):
    done = python("-c", CODE, overlays=[FAKE], check=0, MCORE_AUTOPATCH_REPORT="/dev/full")
    one_warning(done, "/dev/full: ")


@pytest.mark.parametrize("wrapt", ["works", "broken"])
def test_a_full_disk_behind_stderr_changes_nothing(python, tmp_path, wrapt):
    code = f"import sys; sys.stderr = open('/dev/full', 'w', buffering=1)\n{CODE}"
    code = code.replace("use(patch())", "use(patch(), patch('two', probe=lambda module: 1 / 0))")
    code += "\nsys.stderr = None"
    expected = "('one', 'function', 1, 1)\n"
    if wrapt == "broken":
        (tmp_path / "wrapt.py").write_text("raise RuntimeError")
        code, expected = code.replace("use(", "(lambda *_: 0)("), expected.replace("'one', ", "")
    done = python("-c", code, overlays=[tmp_path, FAKE], MCORE_AUTOPATCH_VERBOSE=2)
    assert done.stdout == expected


@pytest.mark.parametrize("wrapt", ["works", "broken"])
@pytest.mark.parametrize("closed", ["0", "1", "2", "0, 1, 2"])
def test_closed_standard_streams_change_nothing(python, tmp_path, closed, wrapt):
    code = f"{CODE.replace('print(', 'assert (')}[0] == 'one'; open('result', 'w').write('reached')"
    if wrapt == "broken":
        (tmp_path / "wrapt.py").write_text("raise RuntimeError")
        code = code.replace("use(", "(lambda *_: 0)(").replace("'one'", "'function'")
    launcher = f"import os, sys\nfor fd in ({closed},): os.close(fd)\n"
    launcher += "os.execv(sys.executable, [sys.executable, '-c', sys.argv[1]])"
    variables = {"MCORE_AUTOPATCH_VERBOSE": 2, "MCORE_AUTOPATCH_DISABLE": "typo"}
    python("-c", launcher, code, overlays=[tmp_path, FAKE], check=0, **variables)
    assert (tmp_path / "result").read_text() == "reached"


def test_an_installation_that_cannot_be_written_to_works(python, mounted, installed):
    # No .pyc can be written, and none is there.
    disk = mounted("size=64m")
    subprocess.run(["cp", "-r", installed.parents[1], disk / "venv"], check=True)
    subprocess.run(["find", disk, "-name", "__pycache__", "-exec", "rm", "-r", "{}", "+"], check=True)
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    done = python("-c", CODE, executable=disk / "venv" / "bin" / installed.name, overlays=[FAKE], check=0)
    assert (done.stdout, done.stderr) == ("('one', 'function', 1, 1)\n", "")


def test_a_working_folder_that_is_gone_changes_nothing(python, tmp_path):
    code = f"import os; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')\n{CODE}"
    done = python("-c", code, overlays=[FAKE], check=0, MCORE_AUTOPATCH_REPORT="relative.json")
    assert done.stdout == "('one', 'function', 1, 1)\n"
    assert done.stderr.count("\n") == 1 and "MCORE_AUTOPATCH_REPORT: no report will be written" in done.stderr
    done = python("-c", code, overlays=[FAKE], check=0)
    assert (done.stdout, done.stderr) == ("('one', 'function', 1, 1)\n", "")
