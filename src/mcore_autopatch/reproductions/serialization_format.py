"""A checkpoint goes out through megatron-core's writer, in each of its modes, and comes back equal."""

import functools
from collections.abc import Callable

from mcore_autopatch.reproductions import _checkpoint

#: Mode of the writer -> its round trip: in this process, in one that is forked, in one that is spawned and stays.
CASES: dict[str, Callable[[], str]] = {
    mode: functools.partial(_checkpoint.round_trip, mode) for mode in _checkpoint.MODES
}
