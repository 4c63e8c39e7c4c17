"""Finds what a patch replaces in its target, by attribute path, and reads the marks of replacements."""

import contextlib
import functools
import inspect
from types import ModuleType
from typing import Any

#: Attribute of every replacement: the ids of the patches in it, innermost first.
MARK = "__mcore_autopatch__"


def present(module: ModuleType, path: str) -> str:
    """Return the first of the paths in "Strategy.load or load" that is there, and the last one where none is."""
    *paths, last = path.split(" or ")
    for one in paths:
        with contextlib.suppress(AttributeError):
            functools.reduce(getattr, one.split("."), module)
            return one
    return last


def locate(module: ModuleType, path: str) -> tuple[Any, str, Any]:
    """Return owner, name and raw value of a path such as "GPTModel.forward"; raw keeps a static method one.

    Raises AttributeError where there is nothing.
    """
    *owners, name = present(module, path).split(".")
    owner = functools.reduce(getattr, owners, module)
    return owner, name, inspect.getattr_static(owner, name)


def look_up(module: ModuleType, path: str) -> Any:
    """Return the function at a path. Raises AttributeError where there is none."""
    return function_of(locate(module, path)[2])


def function_of(raw: Any) -> Any:
    """Return the function inside a static or class method; anything else as it is."""
    return raw.__func__ if isinstance(raw, (staticmethod, classmethod)) else raw


def marks(function: Any) -> tuple[str, ...]:
    """Return the ids of the patches in a function, also inside somebody's functools.wraps."""
    ids: tuple[str, ...] = getattr(function, MARK, ())
    return ids
