"""Patches, and what others plug in, that raise: the user's import ends as without us.

Patches that raise in the ordinary ways are in test_engine.py ("What goes wrong"), patch files in test_others.py.
"""

import pytest
from environments import FAKE, OUTCOME

IMPORT = """
import megatron.core.models.model as m
print(m.function(1))
"""
BY_OTHERS = """
from mcore_autopatch import Affected, Patch
patch = Patch(title="t", symptom="s", cause="c", effect="e", upstream="u", target="megatron.core.models.model",
    affected=(Affected(megatron_core=">=0.1", source="x"),), probe=lambda module: True,
    replacements={"function": lambda original: lambda *args: ("theirs", *original(*args))})
"""


@pytest.mark.parametrize("base", ["Exception", "BaseException", "SystemExit", "KeyError", "OSError"])
@pytest.mark.parametrize("raised_by", ["probe", "builder", "execution", "leaving"])
def test_an_exception_without_a_text_is_a_failure_like_any_other(run, raised_by, base):
    # Guard: described() asks str() inside try.
    done = run(
        f"""
import contextlib
class Untold({base}):
    def __str__(self): raise ValueError("no text")
    __repr__ = __str__
def raising(*_): raise Untold
@contextlib.contextmanager
def leaving(module):
    yield
    raise Untold
fields = {{"probe": {{"probe": raising}}, "builder": {{"replacements": {{"function": raising}}}},
    "execution": {{"execution": raising}}, "leaving": {{"execution": leaving, "replacements": {{}}}}}}[{raised_by!r}]
use(patch(**fields))
{IMPORT}{OUTCOME}
""",
        stderr=None,
    )
    assert done.stdout == "('function', 1, 1)\none FAILED None\n"
    assert "one: failed: Untold: its text raises ValueError; " in done.stderr


@pytest.mark.parametrize("raised", ["KeyboardInterrupt", "SystemExit(3)", "BaseException('b')", "ValueError('v')"])
def test_what_a_replacement_raises_at_a_call_is_the_callers(run, raised):
    done = run(f"""
def raising(original):
    def replacement(*args, **kwargs):
        raise {raised}
    return replacement
use(patch(replacements={{"function": raising}}))
import megatron.core.models.model as m
try:
    m.function(1)
except BaseException as error:
    print(repr(error), len(mcore_autopatch.outcomes()))
""")
    assert done.stdout == f"{raised}{'' if '(' in raised else '()'} 1\n"


@pytest.mark.parametrize("raised", ["BaseException('b')", "SystemExit(3)", "RecursionError('r')"])
def test_a_log_handler_that_raises_is_told_on_stderr_and_changes_nothing(run, raised):
    # Guard: _log() catches BaseException.
    done = run(
        f"""
import logging
class Raising(logging.Handler):
    def emit(self, record):
        raise {raised}
logging.getLogger("mcore_autopatch").addHandler(Raising())
logging.getLogger("mcore_autopatch").setLevel(1)
use(patch(), patch("two", probe=lambda module: 1 / 0))
{IMPORT}{OUTCOME}
""",
        stderr=None,
    )
    assert done.stdout == "('one', 'function', 1, 1)\none APPLIED None; two FAILED None\n"
    name, _, text = raised.rstrip("')").partition("(")
    assert f"(and logging it raised {name}: {text.strip(chr(39))})" in done.stderr


def test_a_log_handler_that_is_interrupted_by_the_user_interrupts(run):
    done = run("""
import logging
class Interrupted(logging.Handler):
    def emit(self, record):
        raise KeyboardInterrupt
logging.getLogger("mcore_autopatch").addHandler(Interrupted())
logging.getLogger("mcore_autopatch").setLevel(1)
use(patch())
try:
    import megatron.core.models.model
except KeyboardInterrupt:
    print("interrupted")
""")
    assert done.stdout == "interrupted\n"


def test_a_probe_that_loads_its_target_anew_applies_the_patch_once(run):
    # Guard: _replace() leaves out what carries the patch.
    done = run(f"""
def reloading(module, times=[]):
    times.append(1)
    if len(times) < 4:
        importlib.reload(module)
    return True
use(patch(probe=reloading, attributes=("function", "Model.static")), patch("two"))
import megatron.core.models.model as m
print(m.function(1), m.Model.static(2), m.function.__mcore_autopatch__)
{OUTCOME}
""")
    first = "('two', 'one', 'function', 1, 1) ('one', 'static', 2) ('one', 'two')\n"
    assert done.stdout == f"{first}one APPLIED None; two APPLIED None\n"


def test_a_probe_that_always_loads_its_target_anew_ends(run):
    done = run(
        """
def reloading(module):
    importlib.reload(module)
    return True
use(patch(probe=reloading))
import megatron.core.models.model as m
print(m.function(1)[-3:], len(m.function(1)) <= 4)
""",
        stderr=None,
    )
    assert done.stdout == "('function', 1, 1) True\n"


def test_a_probe_that_takes_its_target_out_of_sys_modules_does_not_break_the_import(run):
    done = run(f"""
use(patch(probe=lambda module: sys.modules.pop(MODEL) is module))
{IMPORT}
print(m is sys.modules[MODEL])
""")
    assert done.stdout == "('one', 'function', 1, 1)\nTrue\n"


@pytest.mark.parametrize(
    "text",
    [
        "raise KeyError",
        "import os, sys; sys.exit('stop')",
        "class E(BaseException):\n def __str__(self): raise ValueError\nraise E",
        "raise BaseException",
        "patch = property(lambda: 1 / 0)",
        "def __getattr__(name): raise SystemExit(3)",
        "import mcore_autopatch; mcore_autopatch.install(); mcore_autopatch.outcomes(); raise ValueError",
        "import sys; sys.modules[__name__] = None; raise ValueError",
        "import sys; sys.modules.pop(__name__); raise ValueError",
        "def broken(*_): raise RecursionError\nbroken.__code__ = None",
        "\0",
        "a = " + "(" * 300,
    ],
)
def test_a_file_that_is_broken_in_some_way_costs_nobody_else_anything(run, tmp_path, text):
    (tmp_path / "broken.py").write_text(text)
    (tmp_path / "good.py").write_text(BY_OTHERS)
    done = run(
        f"{IMPORT}\nprint(*(f'{{o.patch}} {{o.status.name}}' for o in mcore_autopatch.outcomes() if '/' in o.origin))",
        stderr=None,
        MCORE_AUTOPATCH_PATH=tmp_path,
    )
    assert done.stdout == "('theirs', 'function', 1, 1)\nbroken FAILED good APPLIED\n"
    assert "broken" in done.stderr


@pytest.mark.parametrize(
    "files",
    [
        {"entry_points.txt": b"[mcore_autopatch.patches]\n\xff = x:y\n"},
        {"entry_points.txt": b"[mcore_autopatch.patches]\nno equals sign\n"},
        {"entry_points.txt": b"[mcore_autopatch.patches]\nours = not a reference !\n", "METADATA": b"Name: x\n"},
        {
            "entry_points.txt": b"[mcore_autopatch.patches]\nours = gone_away:patch\n",
            "METADATA": b"Name: x\nVersion: 1\n",
        },
        {"entry_points.txt": b"[mcore_autopatch.patches]\nours = gone_away\n"},
        {"entry_points.txt": b"[mcore_autopatch.patches]\nours = gone_away\n", "METADATA": b"\xff\xfe"},
        {"entry_points.txt": b"[mcore_autopatch.patches]\n= \n"},
    ],
)
def test_metadata_of_another_package_that_is_broken_costs_none_of_our_patches(run, tmp_path, files):
    # Guard: _of_distributions() reads the metadata inside try.
    folder = tmp_path / "theirs-1.dist-info"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    code = f"{IMPORT}\nprint(len([o for o in mcore_autopatch.outcomes() if o.origin == 'mcore-autopatch']) > 5)"
    done = run(code, stderr=None, overlays=[tmp_path])
    assert done.stdout == "('function', 1, 1)\nTrue\n"
    assert "no patch is applied" not in done.stderr


def test_a_finder_that_raises_for_one_of_our_own_modules_is_one_line(python):
    code = """
import sys
class Broken:
    def find_spec(self, name, path=None, target=None):
        if name == "mcore_autopatch.matching":
            raise RuntimeError("theirs")
sys.meta_path.insert(0, Broken())
import megatron.core.models.model as m
print(m.function(1))
"""
    done = python("-c", code, overlays=[FAKE], check=0)
    assert done.stdout == "('function', 1, 1)\n"
    assert done.stderr.startswith("mcore-autopatch: no patch is applied in this process (RuntimeError: theirs)")
    assert done.stderr.count("\n") == 1
