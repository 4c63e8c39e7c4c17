"""The base of our small frozen values.

It does what dataclasses do for a frozen class with keywords only. They compile several methods anew for each class,
which would take more time than all the rest that happens at the first import of megatron.core.
"""

from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing_extensions import Self, dataclass_transform
else:

    def dataclass_transform(**_: object) -> Any:
        """Tell type checkers what the class is; at run time it stays as it is."""
        return lambda cls: cls


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Record:
    """A value whose fields are the annotations of its class. Takes keywords; equal and hashed by its fields.

    Raises TypeError for a field that is unknown or missing, and AttributeError when a field is set.
    """

    def __init__(self, **values: Any) -> None:
        fields = type(self).__annotations__
        for name in values:
            if name not in fields:
                raise TypeError(f"{type(self).__name__} has no field {name!r}")
        for name in fields:
            if name in values:
                vars(self)[name] = values[name]
            elif hasattr(type(self), name):
                vars(self)[name] = getattr(type(self), name)
            else:
                raise TypeError(f"{type(self).__name__} needs {name!r}")
        self.__post_init__()

    def __post_init__(self) -> None:
        """Check the values; for subclasses."""

    def replace(self, **changes: Any) -> "Self":
        """Return a copy with some fields changed."""
        return type(self)(**{**vars(self), **changes})

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name!r} of {type(self).__name__} cannot be set; replace() makes a changed copy")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash(tuple(vars(self).items()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"
