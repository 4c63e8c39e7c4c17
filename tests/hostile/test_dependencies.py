"""wrapt, packaging or parts of this package missing, too old, broken or half uninstalled.

That a missing module is one line and no harm is in test_engine.py; the oldest releases that work are those of
`nox -s floors`.
"""

import shutil

import pytest
from environments import FAKE

IMPORT = "import megatron.core.models.model as m; print(m.function(1)); import mcore_autopatch as a; a.outcomes"
#: What stands in the place of a package.
CONTENTS = {
    "raises": "raise RuntimeError('broken')",
    "exits": "import sys; sys.exit(3)",
    "syntax": "def",
    "empty, or too old": "",
    "wrong kind": "register_post_import_hook = notify_module_loaded = SpecifierSet = Version = None",
    "another exception": "class Odd(BaseException):\n def __str__(self): return 1\nraise Odd",
    "terminal": r"raise ImportError('\x1b[2J\n\nmcore-autopatch: all is well\u202e')",
}


def one_line(done, off):
    assert (done.returncode, done.stdout) == (off.returncode, off.stdout)
    assert done.stderr.startswith("mcore-autopatch: no patch is applied in this process (")
    assert done.stderr.count("\n") == 1 and done.stderr.rstrip("\n").isprintable()
    assert "reinstall mcore-autopatch, or set MCORE_AUTOPATCH=0" in done.stderr


@pytest.mark.parametrize("text", CONTENTS.values(), ids=CONTENTS)
@pytest.mark.parametrize("name", ["wrapt", "packaging"])
def test_a_broken_dependency_is_one_line(python, tmp_path, name, text):
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text(text)
    code = "import megatron.core.models.model as m; print(m.function(1))"
    done, off = (
        python("-c", code, overlays=[tmp_path, FAKE], MCORE_AUTOPATCH=switch, check=0, timeout=60) for switch in "10"
    )
    one_line(done, off)


@pytest.fixture(scope="module")
def half(installed, tmp_path_factory):
    """Return a function: what to take away -> the interpreter of an environment that lacks it."""

    def make(*lost):
        folder = tmp_path_factory.mktemp("half") / "venv"
        shutil.copytree(installed.parents[1], folder, symlinks=True)
        (packages,) = (folder / "lib").glob("python*/site-packages")
        for name in lost:
            for path in packages.glob(name):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        return folder / "bin" / installed.name

    return make


@pytest.mark.parametrize(
    "lost",
    [
        "wrapt",
        "wrapt/importer.py",
        "packaging",
        "packaging/specifiers.py",
        "mcore_autopatch",
        "mcore_autopatch/_startup.py",
        "mcore_autopatch/engine.py",
        "mcore_autopatch/patches",
        "mcore_autopatch/foreign.py",
        "mcore_autopatch/[dem-r]*.py",
    ],
)
def test_half_uninstalled_is_one_line_at_the_first_import(half, python, lost):
    interpreter = half(lost, "*/__pycache__")
    code = "import megatron.core.models.model as m; print(m.function(1))"
    assert python("-c", "print(1)", executable=interpreter, check=0).stderr == ""
    done, off = (
        python("-c", code, executable=interpreter, overlays=[FAKE], MCORE_AUTOPATCH=switch, check=0) for switch in "10"
    )
    one_line(done, off)


@pytest.mark.parametrize("lost", [["_mcore_autopatch.py"], ["_mcore_autopatch.py", "mcore_autopatch"]])
def test_a_line_left_behind_costs_a_message_of_pythons_and_nothing_else(half, python, lost):
    # site says so at each of the two times that it reads the folder of a virtual environment; see test_packaging.py for
    # what pip uninstall leaves: nothing.
    interpreter = half(*lost, "__pycache__/_mcore_autopatch*")
    done = python("-c", f"{IMPORT.partition(';')[0]}; print(m.function(1))", executable=interpreter, overlays=[FAKE])
    assert (done.returncode, done.stdout) == (0, "('function', 1, 1)\n")
    assert "mcore_autopatch.pth:" in done.stderr
    assert "ModuleNotFoundError: No module named '_mcore_autopatch" in done.stderr
    assert "Remainder of file ignored" in done.stderr


def test_our_modules_imported_anew_do_not_make_a_second_finder(python):
    # As pex does in an interpreter that has this package too.
    code = """
import sys
for name in [name for name in sys.modules if "mcore_autopatch" in name]:
    del sys.modules[name]
import _mcore_autopatch; _mcore_autopatch.init()
import megatron.core.models.model as m
print(m.function(1), sum(getattr(f, "__name__", "") == "_mcore_autopatch" for f in sys.meta_path))
"""
    assert python("-c", code, overlays=[FAKE], check=0).stdout == "('function', 1, 1) 1\n"
