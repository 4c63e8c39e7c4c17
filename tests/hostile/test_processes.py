"""Processes and interpreters that come from one another: fork, spawn, forkserver, subinterpreters.

What runs in multiprocessing's children when reports are asked for is in test_fleet.py; launchers are in
tests/launchers.
"""

import pytest
from environments import FAKE

PATCHED = "('one', 'function', 1, 1)"
FINDERS = "sum(getattr(f, '__name__', '') == '_mcore_autopatch' for f in sys.meta_path)"


@pytest.mark.parametrize("moment", ["before arming", "armed", "applied"])
# A child that is forked while another thread imports a module can never import that module, in Python without us too.
def test_a_forked_child_is_patched_like_its_parent(run, moment):
    done = run(
        f"""
import os, warnings
warnings.simplefilter("ignore")
use(patch())
moment = {moment!r}
if moment == "armed":
    import megatron.core
elif moment == "applied":
    import megatron.core.models.model
child = os.fork()
if child:
    _, status = os.waitpid(child, 0)
    print("parent", status, end=" ", flush=True)
else:
    print("child", end=" ")
import megatron.core.models.model as m
print(m.function(1), {FINDERS}, flush=True)
if not child:
    os._exit(0)
""",
        stderr=None,
    )
    child, parent = done.stdout.splitlines()
    assert child == f"child {PATCHED} 1"
    assert parent == f"parent 0 {PATCHED} 1"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver", "forkserver, preloaded"])
def test_children_of_multiprocessing_are_patched_once(python, tmp_path, method):
    method, _, preload = method.partition(", ")
    (tmp_path / "setup_of_fakes.py").write_text("from fake_patches import patch, use\nuse(patch())\n")
    script = tmp_path / "program.py"
    script.write_text(f"""
import multiprocessing, sys
import setup_of_fakes
def child(_):
    import megatron.core.models.model as m
    return m.function(1), {FINDERS}, m.function.__mcore_autopatch__
if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    if {preload!r}:
        context.set_forkserver_preload(["setup_of_fakes", "megatron.core.models.model"])
    with context.Pool(2) as pool:
        print(set(pool.map(child, range(8))))
""")
    done = python(script, overlays=[FAKE, tmp_path], check=0)
    assert done.stdout == f"{{({PATCHED}, 1, ('one',))}}\n"


@pytest.mark.parametrize("isolated", [False, True], ids=["shared", "own GIL from Python 3.12 on"])
def test_a_subinterpreter_is_patched_like_any_other(python, isolated):
    # Each has its own sys.modules and runs site, and so has a finder of its own.
    inside = f"""
import sys
sys.path[:0] = {[str(FAKE)]}
import mcore_autopatch
from fake_patches import patch, use
use(patch())
import megatron.core.models.model as m
print(m.function(1), {FINDERS}, flush=True)
"""
    done = python(
        "-c",
        f"""
try:
    import _interpreters as interpreters
    options = ("isolated" if {isolated} else "legacy",), {{}}
except ImportError:
    import _xxsubinterpreters as interpreters
    options = (), {{"isolated": {isolated}}}
for _ in range(2):
    one = interpreters.create(*options[0], **options[1])
    print(interpreters.run_string(one, {inside!r}), flush=True)
    interpreters.destroy(one)
""",
        check=0,
    )
    assert done.stdout == f"{PATCHED} 1\nNone\n" * 2
