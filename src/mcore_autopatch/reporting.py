"""The outcomes of this process: kept, logged, and told as text."""

import logging
import os
import sys

from mcore_autopatch import _startup, installed
from mcore_autopatch.declaration import Patch
from mcore_autopatch.foreign import described, interrupts, printable
from mcore_autopatch.outcome import Outcome, Status
from mcore_autopatch.switches import Switches

#: Of messages that can be seen without any configuration, and so without the logger's name.
_PREFIX = "mcore-autopatch: "
_logger = logging.getLogger("mcore_autopatch")
_outcomes: dict[tuple[str, str], Outcome] = {}


def configure(switches: Switches) -> None:
    """Print the decisions on stderr when MCORE_AUTOPATCH_VERBOSE asks for it."""
    if not switches.verbose or any(isinstance(handler, _Verbose) for handler in _logger.handlers):
        return
    handler = _Verbose()
    rank = os.environ.get("RANK")
    handler.where = f" [rank {rank}, pid {os.getpid()}]" if switches.verbose > 1 and rank else ""
    # Eight ranks of one host say the same; at level 1 the first speaks for all, and only failures come from the others.
    handler.setLevel(logging.WARNING if switches.verbose == 1 and _is_follower() else logging.DEBUG)
    _logger.addHandler(handler)
    _logger.setLevel(logging.DEBUG)


class _Verbose(logging.StreamHandler):  # type: ignore[type-arg]
    """The handler that MCORE_AUTOPATCH_VERBOSE adds."""

    where = ""

    def format(self, record: logging.LogRecord) -> str:
        """Put the name of this package first, and the rank where it is asked for."""
        return f"mcore-autopatch{self.where}: {record.getMessage().removeprefix(_PREFIX)}"


def _is_follower() -> bool:
    return os.environ.get("LOCAL_RANK", "0") not in ("", "0")


def record(outcome: Outcome, *, seconds: float | None = None) -> None:
    """Keep an outcome and log it, unless it is known or says that a patch waits."""
    # Two patches of one id are two outcomes: the second is FAILED, and says so under its origin.
    key = (outcome.patch, outcome.origin)
    if _outcomes.get(key) == outcome:
        return
    _outcomes[key] = outcome
    if outcome.status is Status.WAITING:
        return
    if outcome.status is Status.FAILED:
        level = logging.WARNING
    elif outcome.status is Status.APPLIED and not _is_follower():
        level = logging.INFO
    else:
        level = logging.DEBUG
    timing = "" if seconds is None else f" [{seconds * 1000:.2f} ms]"
    # Indented, so that no line of an exception's text looks like one of ours.
    trace = f"\n{outcome.traceback.rstrip()}".replace("\n", "\n  ") if outcome.traceback else ""
    prefix = _PREFIX if level == logging.WARNING else ""
    _log(level, f"{prefix}{line(outcome)}{timing}{trace}")


def silence() -> None:
    """Keep outcomes without logging them, in a process that exists only to tell them."""
    _logger.disabled = True


def warn(text: str) -> None:
    """Log something that the user has to know."""
    _log(logging.WARNING, f"{_PREFIX}{printable(text)}")


def _log(level: int, text: str) -> None:
    try:
        _logger.log(level, "%s", text)
    except BaseException as error:  # a handler of the user's must not decide about the user's import
        if interrupts(error):
            raise
        if level >= logging.WARNING:
            _startup.say(f"{text.removeprefix(_PREFIX)} (and logging it raised {described(error)})")


def line(outcome: Outcome) -> str:
    """One outcome in one line."""
    reason = f" ({outcome.reason.value})" if outcome.reason else ""
    origin = "" if outcome.origin == "mcore-autopatch" else f" from {outcome.origin}"
    return f"{outcome.patch}{origin}: {outcome.status.value}{reason}: {outcome.detail}"


def recorded(patch: Patch) -> Outcome | None:
    """Return the outcome of one patch, if there is one yet."""
    return _outcomes.get((patch.id, patch.origin))


def outcomes() -> tuple[Outcome, ...]:
    """Return the outcome of every patch in this process, by id. Empty until megatron.core is imported."""
    return tuple(_outcomes[key] for key in sorted(_outcomes))


def report() -> str:
    """Return this process's versions and outcomes as text of several lines."""
    registered = _startup.registered()
    hook = "active" if registered else "not active in this process"
    if _startup.switched_off():
        hook += ", switched off by MCORE_AUTOPATCH"
    rows = [
        ("hook", hook),
        ("megatron-core", (installed.megatron_core() if "megatron.core" in sys.modules else None) or "not loaded"),
        ("torch", installed.torch() or "not loaded"),
        ("device", installed.device().value if "torch" in sys.modules else "unknown until torch is loaded"),
    ]
    text = [f"{name + ':':<15}{printable(value)}" for name, value in rows]
    text += [line(outcome) for outcome in outcomes()] or [
        "no patch has been considered yet: megatron.core is not imported"
    ]
    return "\n".join(text)
