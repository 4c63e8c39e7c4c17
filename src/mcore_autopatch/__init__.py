"""Fixes for megatron-core that apply themselves when its modules are imported.

Nothing has to be called: the finder that applies the fixes is registered when Python starts. Everything public is
loaded on first use, because this module is imported by every interpreter that has the package installed.
"""

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mcore_autopatch.declaration import Affected, Device, Patch
    from mcore_autopatch.engine import install
    from mcore_autopatch.errors import AutopatchError, PatchDefinitionError, PatchFailedError, UnknownPatchError
    from mcore_autopatch.outcome import Outcome, SkipReason, Status
    from mcore_autopatch.reporting import outcomes, report

__all__ = [
    "Affected",
    "AutopatchError",
    "Device",
    "Outcome",
    "Patch",
    "PatchDefinitionError",
    "PatchFailedError",
    "SkipReason",
    "Status",
    "UnknownPatchError",
    "__version__",
    "install",
    "outcomes",
    "report",
]

_HOME = {
    "Affected": "declaration",
    "AutopatchError": "errors",
    "Device": "declaration",
    "Outcome": "outcome",
    "Patch": "declaration",
    "PatchDefinitionError": "errors",
    "PatchFailedError": "errors",
    "SkipReason": "outcome",
    "Status": "outcome",
    "UnknownPatchError": "errors",
    "install": "engine",
    "outcomes": "reporting",
    "report": "reporting",
}


def __getattr__(name: str) -> object:
    """Load a public name from the module that defines it."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        # __import__ rather than importlib: a bare interpreter has not loaded importlib yet.
        value = getattr(__import__(f"{__name__}.{home}", fromlist=[name]), name)
    except Exception as error:
        # MindSpeed asks every module in sys.modules with hasattr(), which lets anything but AttributeError out.
        raise AttributeError(f"{__name__}.{name} cannot be loaded: {type(error).__name__}: {error}") from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Every public name, loaded or not."""
    return sorted({*globals(), *__all__})
