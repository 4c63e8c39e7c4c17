"""A checkpoint goes out through the writer of megatron-core up to 0.11, and comes back equal."""

import functools
from collections.abc import Callable

from mcore_autopatch.reproductions import _checkpoint

#: Mode of the writer -> its round trip: in this process, or in one that is forked. None stays, before 0.12.
CASES: dict[str, Callable[[], str]] = {
    mode: functools.partial(_checkpoint.round_trip, mode) for mode in ("sync", "async")
}
