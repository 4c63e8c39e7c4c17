"""The persistent checkpoint worker starts, and writes a checkpoint, where there is no CUDA device."""

import inspect
import logging
import queue
from collections.abc import Callable
from typing import Any

from mcore_autopatch.reproductions import _checkpoint, _cpu


def _loop() -> str:
    """Execute what the worker executes, in this process, where its error can be seen."""
    if not _checkpoint.has_persistent_worker():
        return "this megatron-core has no persistent worker"
    _cpu.start()
    from megatron.core.dist_checkpointing.strategies import async_utils

    caller = async_utils.PersistentAsyncCaller
    requests: queue.Queue[str] = queue.Queue()
    requests.put("DONE")
    level = logging.getLogger(async_utils.__name__).getEffectiveLevel()
    # From 0.17 on it would make this process a nicer one.
    options: dict[str, Any] = {"cpu_priority": None}
    options = {name: options[name] for name in options.keys() & inspect.signature(caller.async_loop).parameters}
    caller.async_loop(0, requests, queue.Queue(), queue.Queue(), level, **options)
    return "the worker starts and ends"


def _persistent() -> str:
    if not _checkpoint.has_persistent_worker():
        return "this megatron-core has no persistent worker"
    return _checkpoint.round_trip("persistent")


#: The worker's own code, and a checkpoint that goes through a spawned worker.
CASES: dict[str, Callable[[], str]] = {"loop": _loop, "persistent": _persistent}
