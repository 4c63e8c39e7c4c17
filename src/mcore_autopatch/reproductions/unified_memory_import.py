"""megatron.core is imported where megatron-core 0.15 cannot compile the extension that it compiles on import."""

import multiprocessing
import os
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Seconds in torch's wait for a lock after which the wait counts as endless, and seconds for the whole import.
ENDLESS, LIMIT = 10, 100


def _in_a_new_process(prepare: Callable[[Path], None]) -> str:
    """Import megatron.core in a new process, prepared by ``prepare`` with an empty folder, and return what it says."""
    with tempfile.TemporaryDirectory(prefix="mcore-autopatch-") as folder:
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(target=_import, args=(theirs, prepare, Path(folder)))
        process.start()
        theirs.close()
        try:
            if not ours.poll(LIMIT):
                raise TimeoutError(f"import megatron.core has not ended after {LIMIT} seconds")
            result = ours.recv()
        finally:
            process.kill()
            process.join()
    if isinstance(result, Exception):
        raise result
    return str(result)


def _import(connection: Any, prepare: Callable[[Path], None], folder: Path) -> None:
    try:
        os.environ.update(CUDA_VISIBLE_DEVICES="", TORCH_EXTENSIONS_DIR=str(folder))
        os.environ.pop("TORCH_CUDA_ARCH_LIST", None)
        prepare(folder)
        before = set(folder.rglob("lock"))
        threading.Thread(target=_watch, args=(connection, threading.get_ident()), daemon=True).start()

        import megatron.core  # noqa: F401

        # From torch 2.14 on the system holds the lock for as long as a process lives, and the file means nothing.
        means_something = hasattr(sys.modules.get("torch.utils.cpp_extension"), "FileBaton")
        if means_something and set(folder.rglob("lock")) != before:
            raise FileNotFoundError("a lock has been left or removed")  # noqa: TRY301
        module = sys.modules.get("megatron.core.inference.unified_memory")
        without = ", without unified memory" if getattr(module, "has_unified_memory", None) is False else ""
        connection.send(f"megatron.core is imported{without}")
    except Exception as error:
        traceback.print_exc()
        connection.send(error)


def _watch(connection: Any, thread: int) -> None:
    """Report ``thread`` when it is found in torch's wait for a lock without a break."""
    since = time.monotonic()
    while time.monotonic() - since < ENDLESS:
        time.sleep(0.2)
        frame = sys._current_frames()[thread]
        if Path(frame.f_code.co_filename).name != "file_baton.py":
            since = time.monotonic()
    traceback.print_stack(frame)
    where = f"FileBaton.{frame.f_code.co_name}"
    connection.send(TimeoutError(f"import megatron.core has been in torch's {where} for {ENDLESS} seconds"))


def _see_no_gpu(folder: Path) -> None:
    """Let torch find a CUDA toolkit and no GPU, as a CUDA build does on a login node."""
    ninja = folder / "bin" / "ninja"
    ninja.parent.mkdir()
    # torch only asks whether there is one before it looks for GPUs.
    ninja.write_text("#!/bin/sh\necho 1.11\n")
    ninja.chmod(0o755)
    os.environ.update(PATH=os.pathsep.join([str(ninja.parent), os.environ["PATH"]]), CUDA_HOME=str(folder))
    os.environ.update(TORCH_DONT_CHECK_COMPILER_ABI="1")

    import torch.utils.cpp_extension

    # What a CUDA build takes from the environment; others do not look.
    torch.utils.cpp_extension.CUDA_HOME = str(folder)


def _leave_a_lock(folder: Path) -> None:
    """Leave what a build leaves that was killed an hour ago."""
    lock = folder / "managed_alloc_runtime" / "lock"
    lock.parent.mkdir()
    lock.touch()
    hour_ago = time.time() - 3600
    os.utime(lock, (hour_ago, hour_ago))


#: With a CUDA toolkit and no GPU; and after a build that was killed.
CASES: dict[str, Callable[[], str]] = {
    "no-gpu": lambda: _in_a_new_process(_see_no_gpu),
    "stale-lock": lambda: _in_a_new_process(_leave_a_lock),
}
