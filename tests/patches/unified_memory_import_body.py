"""Runs the body of unified_memory again and again, with compilations that end in different ways.

Prints JSON, way -> what the body leaves behind and what it asked torch for. Arguments: the ways to try.
"""

import builtins
import importlib
import json
import os
import sys
import threading
import time
import types
import warnings
from pathlib import Path

import torch.cuda.memory
from torch.utils import cpp_extension, file_baton

LOCK = Path(os.environ["TORCH_EXTENSIONS_DIR"], "managed_alloc_runtime", "lock")
TORCHS = (cpp_extension.load_inline, cpp_extension._jit_compile, cpp_extension.FileBaton, builtins.__import__)
asked = []
seen_by_others = []


class Allocator:
    def __init__(self, *arguments):
        asked.append(arguments)

    def allocator(self):
        return "allocator"


def compile_(end):
    """Stand in for ninja and the compiler, and look around while the body of unified_memory is being executed."""

    def build(**arguments):
        asked.append(arguments)
        assert LOCK.exists()
        thread = threading.Thread(target=look_around)
        thread.start()
        thread.join()
        look_around()
        end()

    cpp_extension._write_ninja_file_and_build_library = build


def look_around():
    """Import as any other module would, here and in another thread."""
    namespace = {}
    exec("from torch.utils.cpp_extension import load_inline, _jit_compile, FileBaton", namespace)
    found = (namespace["load_inline"], namespace["_jit_compile"], namespace["FileBaton"], builtins.__import__)
    seen_by_others.append(found == TORCHS and namespace["__builtins__"] is vars(builtins))


def an_unexpected_error():
    raise IndexError


def an_expected_error():
    raise OSError("no compiler")


def compiled():
    compile_(lambda: None)


def compiled_by_another():
    compile_(an_unexpected_error)
    LOCK.touch()
    threading.Timer(3, LOCK.unlink).start()


def failed():
    compile_(an_expected_error)


def failed_unexpectedly():
    compile_(an_unexpected_error)


def held_for_too_long():
    compile_(lambda: None)
    LOCK.touch()


def held_by_a_killed_build():
    compile_(lambda: None)
    LOCK.touch()
    os.utime(LOCK, (0, 0))


def somebody_elses_load_inline():
    def load_inline(**arguments):
        asked.append(arguments)
        an_unexpected_error()

    cpp_extension.load_inline = load_inline


def run(way):
    asked.clear()
    seen_by_others.clear()
    cpp_extension.load_inline = TORCHS[0]
    cpp_extension.JIT_EXTENSION_VERSIONER = type(cpp_extension.JIT_EXTENSION_VERSIONER)()
    globals()[way]()
    started = time.monotonic()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        module = load()
    seconds = time.monotonic() - started
    held = LOCK.exists()
    LOCK.unlink(missing_ok=True)
    functions = [value for value in vars(module).values() if isinstance(value, types.FunctionType)]
    return {
        "has_unified_memory": module.has_unified_memory,
        "allocator": module._alloc,
        "warnings": [str(warning.message) for warning in warned if warning.filename == module.__file__],
        "asked": repr(asked),
        "names": sorted(set(vars(module)) - {"__warningregistry__"}),
        "others see torch's own": list(seen_by_others),
        "torch is as it was": (cpp_extension._jit_compile, cpp_extension.FileBaton, builtins.__import__) == TORCHS[1:],
        "load_inline is torch's": module.load_inline is cpp_extension.load_inline,
        "builtins": [module.__builtins__ is vars(builtins), *(f.__builtins__ is vars(builtins) for f in functions)],
        "still held": held,
        "seconds": round(seconds),
    }


def load():
    name = "megatron.core.inference.unified_memory"
    return importlib.reload(sys.modules[name]) if name in sys.modules else importlib.import_module(name)


assert file_baton.FileBaton is TORCHS[2]
LOCK.parent.mkdir(parents=True, exist_ok=True)
cpp_extension._import_module_from_library = lambda name, path, _: types.SimpleNamespace(__file__=f"{path}/{name}.so")
torch.cuda.memory.CUDAPluggableAllocator = Allocator
if os.environ.get("MCORE_AUTOPATCH") != "0":
    from mcore_autopatch.patches import unified_memory_import

    unified_memory_import.PATIENCE = 6
print(json.dumps({way: run(way) for way in sys.argv[1:]}))
