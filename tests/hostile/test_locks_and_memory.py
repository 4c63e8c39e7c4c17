"""What we must not hold: a lock while code of others runs, a model after a call, memory where nothing is patched."""

import statistics
import sys
from pathlib import Path

import pytest

#: Does in another thread whatever takes a lock of ours, of wrapt's or of logging's, and waits for it.
ELSEWHERE = """
import logging, threading
def elsewhere(*_, done=[]):
    def work():
        import wrapt
        logging.getLogger("mcore_autopatch").debug("x")
        mcore_autopatch.report(), mcore_autopatch.outcomes()
        wrapt.register_post_import_hook(lambda module: None, "colorsys")
        import colorsys
        if not ARMING:
            import megatron.core.models, megatron.core.other
            mcore_autopatch.install()
        done.append(1)
    if not done:
        done.append(0)
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(20)
        print(done, thread.is_alive())
    return True
"""


@pytest.mark.parametrize("place", ["probe", "builder", "enter", "leave", "log", "patch file", "replacement"])
def test_no_lock_is_held_while_code_of_others_runs(run, tmp_path, place):
    other = tmp_path / "other.py"
    other.write_text("def function(x): return (x,)\n")
    done = run(
        f"""
ARMING = {place == "patch file"}
{ELSEWHERE}
import contextlib
from mcore_autopatch import catalogue
@contextlib.contextmanager
def entering(module):
    elsewhere()
    yield
@contextlib.contextmanager
def leaving(module):
    yield
    elsewhere()
class NoLock(contextlib.nullcontext):
    acquire = release = lambda self: None
class Handler(logging.Handler):
    def createLock(self): self.lock = NoLock()
    def emit(self, record): record.levelno > 10 and elsewhere()
def calling(original):
    return lambda *args: elsewhere() and original(*args)
place = {place!r}
fields = {{
    "probe": {{"probe": elsewhere}},
    "builder": {{"replacements": {{"function": lambda original: elsewhere() and original}}}},
    "replacement": {{"replacements": {{"function": calling}}}},
    "enter": {{"replacements": {{}}, "execution": entering}},
    "leave": {{"replacements": {{}}, "execution": leaving}},
}}.get(place, {{}})
patches = patch(**fields), patch("two", target="megatron.core.other")
if place == "patch file":
    catalogue._own = lambda: iter([("one", "x", elsewhere)])
else:
    use(*patches)
if place == "log":
    logging.getLogger("mcore_autopatch").addHandler(Handler())
    logging.getLogger("mcore_autopatch").setLevel(1)
import megatron.core
megatron.core.__path__.append({str(tmp_path)!r})
import megatron.core.models.model as m
m.function(1)
""",
        stderr=None,
    )
    assert done.stdout == "[0, 1] False\n"


def allocated(python, interpreter, program, **variables):
    """Return the bytes that an interpreter holds after the program."""
    code = f"{program}\nimport gc, tracemalloc; gc.collect(); print(tracemalloc.get_traced_memory()[0])"
    return int(python("-X", "tracemalloc=1", "-c", code, executable=interpreter, check=0, **variables).stdout)


@pytest.fixture
def reference(python, make_venv):
    """Interpreter of a virtual environment with nothing in it that takes memory of its own."""
    interpreter = make_venv()
    if sys.version_info >= (3, 13):  # which loads a codec for any .pth file, of 25 kB
        where = python("-c", "import sysconfig; print(sysconfig.get_path('purelib'))", executable=interpreter).stdout
        Path(where.strip(), "empty.pth").write_text("#\n")
    return interpreter


@pytest.mark.parametrize("switch", ["1", "0"])
def test_a_process_that_never_imports_megatron_grows_by_less_than_20_kb(python, reference, installed, switch):
    # Python's table of names doubles now and then, which makes a difference very large or very small.
    differences = []
    for program in ("", "import json", "import argparse, decimal", "import asyncio"):
        allocated(python, installed, program)  # so that every .pyc is there
        ours = allocated(python, installed, program, MCORE_AUTOPATCH=switch)
        differences.append(ours - allocated(python, reference, program))
    assert 0 < statistics.median_low(differences) < 20_000, differences


REFERENCES = """
import functools, gc, torch
from mcore_autopatch.reproductions import {reproduction}
import mcore_autopatch

def tensors():
    for one in gc.get_objects():  # RotaryEmbedding of megatron-core has lru_caches, which keep every model
        if isinstance(one, functools._lru_cache_wrapper) and one.__qualname__.startswith("RotaryEmbedding."):
            one.cache_clear()
    gc.collect()
    return {{id(o): o for o in gc.get_objects() if isinstance(o, (torch.Tensor, torch.nn.Module))}}

{reproduction}.CASES[{case!r}]()  # what torch and megatron-core keep for themselves
before = set(tensors())
count = []
for _ in range(3):
    {reproduction}.CASES[{case!r}]()
    count.append(len(tensors().keys() - before))
print(*count, [o.patch for o in mcore_autopatch.outcomes() if o.status.name == "APPLIED"])
"""


@pytest.mark.real
@pytest.mark.parametrize(
    ("release", "reproduction", "case"),
    [
        ("0.16.1", "mtp_inference", "eval"),
        ("0.16.1", "mtp_inference", "train"),
        ("0.16.1", "mtp_empty_loss_mask", None),
        ("0.13.0", "mtp_block_inference", None),
        ("0.16.1", "moe_without_te", None),
        ("0.12.1", "serialization_format", "sync"),
        ("0.12.1", "serialization_format", "persistent"),
        ("0.16.1", "preload_without_cuda", None),
    ],
)
def test_no_model_and_no_tensor_lives_on_after_a_call(python, megatron_core, release, reproduction, case):
    name = repr(case) if case else f"next(iter({reproduction}.CASES))"
    code = REFERENCES.format(reproduction=reproduction, case="CASE").replace("'CASE'", name)
    done = python("-W", "ignore", "-c", code, overlays=[megatron_core(release)], check=0, MCORE_AUTOPATCH_ENABLE="none")
    *counts, applied = done.stdout.strip().split(maxsplit=3)
    # megatron-core itself keeps the tensor of the last MTP loss; a leak would give one more with each call.
    assert max(map(int, counts)) <= 1, done.stdout
    assert reproduction.replace("_", "-") in applied
