"""The loader of a target, between importlib and the real loader.

The name of this file is of use: warnings.warn(…, stacklevel=2) in the body of a module blames whoever imports it, and
to find that out Python passes over the frames of files whose name contains importlib and _bootstrap, as ours does.
"""

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

_OWN = ("_name", "_real", "_around")


def _itself(loader: Any) -> Any:
    return loader


class Loader:
    """The real loader in all but this: something is done around the execution of the module's body."""

    def __init__(self, real: Any, name: str, around: Callable[[str, ModuleType], Iterator[None]]) -> None:
        vars(self).update(_real=real, _name=name, _around=around)

    @classmethod
    def around(cls, real: Any, name: str, around: Callable[[str, ModuleType], Iterator[None]]) -> Any:
        """Wrap a loader, unless it is wrapped already."""
        return real if type(real) is cls else cls(real, name, around)

    def exec_module(self, module: ModuleType) -> None:
        """Give the real loader back to the module, and execute its body between the two halves of ``around``."""
        spec: Any = getattr(module, "__spec__", None)
        if getattr(spec, "loader", None) is self:
            spec.loader = self._real
        if getattr(module, "__loader__", None) is self:
            module.__loader__ = self._real
        halves = self._around(self._name, module)
        next(halves)
        try:
            self._real.exec_module(module)
        except BaseException:
            halves.close()
            raise
        next(halves, None)

    # Callers look at the loader of a spec that they do not execute, compare it, and change it.

    @property
    def __class__(self) -> Any:
        return type(self._real)

    @__class__.setter
    def __class__(self, value: Any) -> None:
        self._real.__class__ = value

    def __getattr__(self, attribute: str) -> Any:
        if attribute in _OWN:  # while being copied
            raise AttributeError(attribute)
        return getattr(self._real, attribute)

    def __setattr__(self, attribute: str, value: Any) -> None:
        setattr(self._real, attribute, value)

    def __eq__(self, other: object) -> bool:
        return bool(self._real == (vars(other)["_real"] if type(other) is Loader else other))

    def __hash__(self) -> int:
        return hash(self._real)

    def __repr__(self) -> str:
        return repr(self._real)

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (self._real,)
