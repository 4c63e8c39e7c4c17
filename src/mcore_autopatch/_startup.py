"""What the start-up module, which is the finder, leaves for later: arming, when megatron.core is first looked up."""

from typing import Any

import _mcore_autopatch

#: The finder of this package. It is a module because that is what Python loads fastest.
finder: Any = _mcore_autopatch
finder = finder.registered() or finder
OFF: tuple[str, ...] = _mcore_autopatch.OFF
#: Why arming failed in this process; empty where it did not.
failure = ""


def arm(finder: Any) -> None:
    """Load the engine and register the post-import hooks; on any failure the imports of the user go on unpatched."""
    global failure
    failure = ""
    # Emptied first: whatever is imported from here must not arrive here again.
    finder.names = ()
    # Asked again, because scripts set the variable too, and wrapt need not be imported for nothing.
    if switched_off():
        return
    try:
        from mcore_autopatch import engine

        engine.arm(finder)
    except BaseException as error:
        text = type(error).__name__
        try:
            from mcore_autopatch.foreign import described, interrupts

            interrupted, text = interrupts(error), described(error)
        except Exception:  # half uninstalled
            interrupted = isinstance(error, KeyboardInterrupt)
        if interrupted:
            finder.names = finder.FIRST  # the next import of megatron.core arms again
        if interrupted or text.startswith("PatchFailedError"):  # asked for by MCORE_AUTOPATCH_STRICT
            raise
        failure = text
        finder.say(f"no patch is applied in this process ({text})")


def registered() -> bool:
    """Tell whether the finder is in sys.meta_path."""
    return finder.registered() is not None


def switched_off() -> bool:
    """Tell whether MCORE_AUTOPATCH says no."""
    return bool(finder.switched_off())


def say(text: str) -> None:
    """Write one line to stderr, where there is one."""
    finder.say(text, remedy="")
