"""What every interpreter of the environment pays and risks, measured in fresh interpreters."""

import sys
from pathlib import Path

import pytest
from environments import instructions

import mcore_autopatch

MODULES = "import sys; print(*sorted(sys.modules))"
FINDERS = "import sys; print(sum(f is sys.modules.get('_mcore_autopatch') for f in sys.meta_path))"


def loaded(python, interpreter, **variables):
    return set(python("-c", MODULES, executable=interpreter, check=0, **variables).stdout.split())


@pytest.mark.parametrize("switch", ["1", "0"])
def test_start_up_adds_one_module_of_ours_or_none_if_off(make_venv, installed, python, switch):
    # Python 3.13 loads a codec of its own as soon as there is any .pth file.
    with_a_line = make_venv()
    (next(with_a_line.parents[1].rglob("site-packages")) / "nothing.pth").write_text("# a comment\n")
    added = loaded(python, installed, MCORE_AUTOPATCH=switch) - loaded(python, with_a_line)
    assert added == ({"_mcore_autopatch"} if switch == "1" else set())


# docs/benchmarks.md has the figures of each Python. Here one collection of garbage, which takes 0.6 % and happens to
# fall into the start or not, has to fit in. Python 3.13 takes 3.3 % for the first .pth file, whatever is in it.
# Guards: a module-level import of os in _mcore_autopatch takes 1.2 % on Python 3.11, a second module 1.4 %; the module,
# which the line does not import where it is off, takes 1.6 %.
@pytest.mark.parametrize(("switch", "bound"), [("1", 0.04), ("0", 0.025)], ids=["idle", "off"])
def test_start_up_takes_a_bounded_share_of_instructions(bare, installed, switch, bound):
    base = instructions(bare, "-c", "pass")
    if base is None:
        pytest.skip("valgrind is not installed")
    ratio = instructions(installed, "-c", "pass", MCORE_AUTOPATCH=switch) / base
    assert 1 < ratio < 1 + bound + (0.026 if sys.version_info >= (3, 13) else 0)


@pytest.mark.parametrize("switch", ["0", "false", "OFF", " no "])
def test_switched_off_registers_nothing(installed, python, switch):
    assert python("-c", FINDERS, executable=installed, MCORE_AUTOPATCH=switch, check=0).stdout == "0\n"


@pytest.mark.parametrize("switch", ["1", "", "maybe"])
def test_exactly_one_finder_though_the_line_runs_twice_in_a_virtual_environment(installed, python, switch):
    code = f"import _mcore_autopatch as s; s.init(); s.init(); {FINDERS}"
    assert python("-c", code, executable=installed, MCORE_AUTOPATCH=switch, check=0).stdout == "1\n"


@pytest.mark.parametrize("raised", ["SystemExit(3)", "KeyboardInterrupt()", "ValueError('broken')", "BaseException()"])
def test_nothing_escapes_init(installed, python, raised):
    code = f"""
import sys, _mcore_autopatch as s
def broken():
    raise {raised}
sys.meta_path.remove(s)
s.switched_off = broken
print(s.init())
"""
    done = python("-c", code, executable=installed, check=0)
    assert done.stdout == "None\n"
    assert done.stderr.startswith("mcore-autopatch: not active in this process")
    assert done.stderr.count("\n") == 1


def test_an_interpreter_without_stderr_starts(installed, python):
    code = "import sys; sys.stderr = None; import _mcore_autopatch as s; s.say('hello'); print('alive')"
    assert python("-c", code, executable=installed, check=0).stdout == "alive\n"


@pytest.mark.parametrize(
    "options", [["-I"], ["-E"], ["-s"], ["-O"], ["-OO"], ["-X", "frozen_modules=off"], ["-Werror"]]
)
def test_the_hook_is_there_under_interpreter_options(installed, python, options):
    done = python(*options, "-c", FINDERS, executable=installed, check=0)
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_every_other_import_is_answered_with_none(installed, python):
    code = """
import sys, _mcore_autopatch as s
assert sys.meta_path[0] is s
assert s.find_spec('numpy') is None and s.find_spec('megatron', None, None) is None
import json, decimal
print('wrapt' in sys.modules, 'mcore_autopatch' in sys.modules)
"""
    assert python("-c", code, executable=installed, check=0).stdout == "False False\n"


def test_a_child_started_by_multiprocessing_spawn_has_the_hook(installed, python, tmp_path):
    script = tmp_path / "spawn.py"
    script.write_text("""
import multiprocessing
def child(queue):
    import sys
    queue.put(sum(f is sys.modules['_mcore_autopatch'] for f in sys.meta_path))
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    print(queue.get(timeout=60))
    process.join()
""")
    assert python(script, executable=installed, check=0).stdout == "1\n"


def test_public_names_are_loaded_on_first_use(installed, python):
    code = """
import sys, mcore_autopatch as m
assert 'mcore_autopatch.engine' not in sys.modules
assert sorted(m.__all__) == [n for n in dir(m) if n in m.__all__]
for name in m.__all__:
    assert getattr(m, name) is not None
assert callable(m.report) and callable(m.outcomes) and callable(m.install)
print(m.Status.APPLIED.value, m.__version__)
"""
    assert python("-c", code, executable=installed, check=0).stdout.startswith("applied 0.")


def test_an_unknown_name_is_an_attribute_error_and_so_is_a_broken_dependency(installed, python):
    code = """
import sys, mcore_autopatch as m
sys.modules['wrapt'] = None
assert not hasattr(m, 'preload_tensors')
assert not hasattr(m, 'install')
try:
    m.install
except AttributeError as error:
    print(error)
"""
    assert (
        "mcore_autopatch.install cannot be loaded: ModuleNotFoundError"
        in python("-c", code, executable=installed, check=0).stdout
    )


def test_the_start_up_module_imports_sys_and_os_only(python):
    code = """
import sys, os
sys.path.insert(0, sys.argv[1])
before = set(sys.modules)
import _mcore_autopatch
print(*sorted(set(sys.modules) - before))
"""
    done = python("-S", "-c", code, Path(mcore_autopatch.__file__).parents[1], check=0)
    assert done.stdout.split() == ["_mcore_autopatch"]
