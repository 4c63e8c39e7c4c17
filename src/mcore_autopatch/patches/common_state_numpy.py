"""A checkpoint whose common state holds NumPy values can be saved and not loaded."""

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from mcore_autopatch.declaration import Affected, Patch

#: Held while the safe globals are widened: whoever takes them back first would spoil the load of another thread.
_widened = threading.Lock()


def _load_common(module: ModuleType) -> Callable[..., Any]:
    strategy = getattr(module, "TorchCommonLoadStrategy", None)
    function: Callable[..., Any] = strategy.load_common if strategy else module.load_common
    return function


def probe(module: ModuleType) -> bool:
    """Tell whether ``load_common`` leaves it to torch whether to load weights only."""
    source = inspect.getsource(_load_common(module))
    return "torch.load(" in source and "weights_only" not in source


def with_numpy_values(original: Callable[..., Any]) -> Callable[..., Any]:
    """Let torch.load accept NumPy's scalars and dtypes, for the time of the call."""

    def load_common(*args: Any, **kwargs: Any) -> Any:
        with _numpy_allowed():
            return original(*args, **kwargs)

    return load_common


@contextmanager
def _numpy_allowed() -> Iterator[None]:
    from torch.serialization import get_safe_globals, safe_globals

    with _widened:
        known = get_safe_globals()
        # Leaving the context takes away what it was given, and some of it may be there already: megatron-core's, or the
        # user's own.
        with safe_globals([each for each in _numpy_globals() if each not in known]):
            yield


def _numpy_globals() -> list[Any]:
    """Return what the pickle of a NumPy scalar or array names, except for the dtype that holds Python objects."""
    import numpy as np

    rebuild: Any = (np.float64().__reduce__()[0], np.empty(0).__reduce__()[0])
    # NumPy 2 has moved the two, and a checkpoint names them as the NumPy did that wrote it.
    moved = [(each, f"numpy.{home}.multiarray.{each.__name__}") for each in rebuild for home in ("core", "_core")]
    return [*moved, np.ndarray, np.dtype, *{type(np.dtype(kind)) for kind in np.typecodes["All"] if kind != "O"}]


patch = Patch(
    title="a checkpoint whose common state holds NumPy values cannot be loaded",
    symptom=(
        "A checkpoint with NumPy scalars or arrays among its common, not sharded, values is saved without complaint. "
        "Loading it ends in torch.load, with the second of these texts for a scalar and the third for an array."
    ),
    errors=(
        "_pickle.UnpicklingError: Weights only load failed.",
        (
            "WeightsUnpickler error: Unsupported global: GLOBAL numpy._core.multiarray.scalar was not an allowed "
            "global by default."
        ),
        (
            "Can only build Tensor, Parameter, OrderedDict or types allowlisted via `add_safe_globals`, but got <class "
            "'numpy.dtypes.Float64DType'>"
        ),
    ),
    cause=(
        "From 0.14 on megatron-core loads the file common.pt with torch's default, which since torch 2.6 is weights "
        "only, and of NumPy it allows arrays of uint32 alone. From 0.19 on it writes no such file, but still reads "
        "those of earlier releases that way."
    ),
    effect=(
        "While common.pt is being read, and at no other time, torch.load also accepts NumPy's scalars and its dtypes, "
        "except for the dtype of Python objects. Everything else is refused as before, and a checkpoint that could be "
        "loaded gives what it gave."
    ),
    upstream="https://github.com/NVIDIA/Megatron-LM/issues/1884",
    target="megatron.core.dist_checkpointing.strategies.common",
    affected=(
        Affected(megatron_core=">=0.14,<0.19", torch=">=2.6", source="0.14.0, 0.16.1, 0.17.1, 0.18.2 run on a CPU"),
        Affected(megatron_core=">=0.19,<0.20", torch=">=2.6", source="a common.pt of 0.18.2 read by 0.19.2 on a CPU"),
    ),
    probe=probe,
    replacements={"TorchCommonLoadStrategy.load_common or load_common": with_numpy_values},
    opt_in=(
        "It widens what may be unpickled from a checkpoint, by functions of NumPy that nobody has audited for files "
        "from strangers (pytorch#146885)."
    ),
    recognised_by=r"numpy\.(_?core\.multiarray|dtypes\.(?!ObjectDType))",
)
