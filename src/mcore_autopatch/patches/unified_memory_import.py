"""megatron-core 0.15 compiles a CUDA extension while it is imported, and fails or hangs where that cannot be done."""

import ast
import builtins
import functools
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

from mcore_autopatch.declaration import Affected, Patch

#: Age in seconds from which a lock counts as left behind by a build that was killed, and the longest wait for one that
#: is younger. The build compiles one small C++ file; megatron-core 0.16 gives it 30 seconds, lock included.
PATIENCE = 300.0

_EXTENSIONS = "torch.utils.cpp_extension"
_logger = logging.getLogger("mcore_autopatch")


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """Yield everything below ``node`` that runs when the module is imported, rather than when a function is called."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield child
            yield from _executed(child)


def probe(module: ModuleType) -> bool:
    """Tell whether the body of ``module``, which has not run yet, imports ``load_inline`` from torch and calls it."""
    loader: Any = module.__spec__ and module.__spec__.loader
    nodes = list(_executed(ast.parse(loader.get_source(module.__name__))))
    imported = any(
        isinstance(node, ast.ImportFrom)
        and node.module == _EXTENSIONS
        and any(alias.name == "load_inline" and alias.asname is None for alias in node.names)
        for node in nodes
    )
    return imported and any(isinstance(node, ast.Call) and ast.unparse(node.func) == "load_inline" for node in nodes)


@contextmanager
def with_load_inline_that_ends(module: ModuleType) -> Iterator[None]:
    """Let the body of ``module``, and nobody else, import a ``load_inline`` that always ends, as the body expects.

    The import statements of a body call the ``__import__`` among the builtins that its namespace names when it starts.
    Nothing is changed in torch, where other threads would see it. The namespace has its usual builtins back before the
    body defines a function, and ``load_inline`` is torch's own again when the body has run.
    """
    namespace = vars(module)
    replaced: dict[str, Any] = {}

    def import_(name: str, *args: Any, **kwargs: Any) -> Any:
        imported = builtins.__import__(name, *args, **kwargs)
        # An import statement passes globals, locals, the names to import and the level, by position.
        names = args[2] if len(args) > 2 else None  # noqa: PLR2004
        if name != _EXTENSIONS or not names or "load_inline" not in names:
            return imported
        namespace["__builtins__"] = vars(builtins)
        view = SimpleNamespace(**{each: getattr(imported, each) for each in names if hasattr(imported, each)})
        replaced["load_inline"] = view.load_inline
        view.__name__, view.load_inline = name, _failing_as_expected(view.load_inline)
        return view

    namespace["__builtins__"] = {**vars(builtins), "__import__": import_}
    try:
        yield
    finally:
        namespace["__builtins__"] = vars(builtins)
        namespace.update(replaced)


def _failing_as_expected(load_inline: Callable[..., Any]) -> Callable[..., Any]:
    """Turn every failure into one of the three kinds that unified_memory catches, with a warning."""
    ending = _ending(load_inline)

    @functools.wraps(load_inline)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return ending(*args, **kwargs)
        except (RuntimeError, ImportError, OSError):
            raise
        except Exception as error:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error

    return wrapper


def _ending(load_inline: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``load_inline`` over names of its own, among them a lock that is not waited for without end.

    It is returned as it is where it is not the function of torch that waits for a FileBaton.
    """
    names: dict[str, Any] = getattr(load_inline, "__globals__", {})
    build, baton = names.get("_jit_compile"), names.get("FileBaton")
    if not (
        isinstance(load_inline, FunctionType)
        and isinstance(build, FunctionType)
        and build.__globals__ is names
        and isinstance(baton, type)
        and "FileBaton" in build.__code__.co_names
    ):
        return load_inline

    class Baton(baton):  # type: ignore[misc, valid-type]
        def wait(self) -> None:
            _wait(Path(self.lock_file_path), self.wait_seconds)

    own = {**names, "FileBaton": Baton}
    own["_jit_compile"] = _over(build, own)
    return _over(load_inline, own)


def _over(function: FunctionType, names: dict[str, Any]) -> FunctionType:
    """Return the same code as a function that looks its global names up in ``names``."""
    copied = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


def _wait(lock: Path, seconds: float) -> None:
    """Return when ``lock`` is gone, asking every ``seconds``; raise RuntimeError when it seems to be left behind."""
    started = time.monotonic()
    while True:
        try:
            age = time.time() - os.stat(lock).st_mtime  # noqa: PTH116
        except FileNotFoundError:
            return
        # The clock of a file server may be wrong, so this process's own is asked too.
        if max(age, time.monotonic() - started) > PATIENCE:
            text = (
                f"{lock} is {age:.0f} seconds old, so the build that made it seems to have been killed. megatron-core "
                f"goes on without unified memory. To have it built, remove {lock.parent} while no build is running."
            )
            _logger.warning("unified-memory-import: %s", text)
            raise RuntimeError(text)
        time.sleep(seconds)


patch = Patch(
    title="import megatron.core fails or hangs while it compiles a CUDA extension that few need",
    symptom=(
        "Where a CUDA build of torch and a CUDA toolkit see no GPU (login nodes, CI, image builds), import "
        "megatron.core ends in torch's _get_cuda_arch_flags. With torch before 2.14 it never returns, on any device, "
        "after a build has been killed: it waits in torch's FileBaton.wait for the file managed_alloc_runtime/lock "
        "that the build has left in the folder of the torch extensions."
    ),
    errors=("IndexError: list index out of range",),
    cause=(
        "megatron.core.inference.unified_memory compiles managed_alloc_runtime with load_inline in its body. It is "
        "prepared for RuntimeError, ImportError and OSError only, and torch before 2.14 waits for a lock without end."
    ),
    effect=(
        "Any other failure of that one compilation becomes a RuntimeError, and a lock is waited for until it is five "
        "minutes old: megatron-core then warns, as for other failures, and has_unified_memory is False. A compilation "
        "that works, also one that another process does meanwhile, gives what it always gave. No lock and no folder "
        "is removed, and no other user of load_inline is affected."
    ),
    upstream="https://github.com/NVIDIA/Megatron-LM/blob/core_v0.16.0/megatron/core/inference/unified_memory.py",
    fixed_in="0.16.0",
    target="megatron.core.inference.unified_memory",
    affected=(
        Affected(
            megatron_core=">=0.15,<0.16", source="0.15.0 and 0.15.3 run on a CPU; for the lock also pytorch#189245"
        ),
    ),
    probe=probe,
    execution=with_load_inline_that_ends,
)
