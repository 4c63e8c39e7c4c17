"""Checks what is allowed while common.pt is being read, and that it is not allowed at any other time. Prints JSON."""

import decimal
import inspect
import io
import json
import tempfile
import threading
import zipfile
from pathlib import Path

import numpy as np
import torch
from megatron.core.dist_checkpointing.strategies import common
from torch.serialization import add_safe_globals, get_safe_globals

FOLDER = Path(tempfile.mkdtemp(dir="."))
results = {}


def load(value, *, folder=FOLDER, numpy_1=False):
    """Write a common.pt and read it as this release does. ``numpy_1``: as one whose writer had the other NumPy."""
    folder.mkdir(exist_ok=True)
    path = folder / "common.pt"
    torch.save({"value": value}, path)
    if numpy_1:
        with zipfile.ZipFile(path) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content.replace(b"numpy._core.multi", b"numpy.core.multi"))
        assert any(b"numpy.core.multi" in content for content in files.values()) == np.__version__.startswith("1")
    strategy = getattr(common, "TorchCommonLoadStrategy", None)
    return (strategy().load_common if strategy else common.load_common)(folder)["value"]


def refused(function, *arguments, **named):
    """Return the error text, or what was loaded."""
    try:
        return function(*arguments, **named)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def elsewhere(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file)


class Opened(Exception):
    """Not one of the things that may be loaded."""


mine = type(np.dtype("f4"))
add_safe_globals([mine])
before = set(get_safe_globals())
results["not NumPy"] = str(load({"iteration": 7, "tensor": torch.ones(2)}))
results["uint32"] = repr(load(np.arange(3, dtype=np.uint32)))
results["scalar"] = repr(refused(load, np.float64(0.1)))
results["other NumPy"] = repr(refused(load, [np.int8(3), np.arange(2.0)], numpy_1=True))
results["Python objects"] = refused(load, np.array([{}], dtype=object))
results["other classes"] = refused(load, decimal.Decimal(1))
results["own class"] = refused(load, [np.float64(1), Opened()])
results["elsewhere"] = refused(elsewhere, np.float64(0.1))
results["safe globals are as before"] = set(get_safe_globals()) == before and mine in before


def many(folder):
    done.extend(refused(load, np.float64(0.1), folder=FOLDER / folder) for _ in range(40))


done = []
threads = [threading.Thread(target=many, args=(str(number),)) for number in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
results["threads"] = sorted({repr(each) for each in done})
results["safe globals are as before threads"] = set(get_safe_globals()) == before
strategy = getattr(common, "TorchCommonLoadStrategy", None)
function = strategy.load_common if strategy else common.load_common
results["place"] = f"{function.__module__}.{function.__qualname__}{inspect.signature(function)}"
print(json.dumps(results))
