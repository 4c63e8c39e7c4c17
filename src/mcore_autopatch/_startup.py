"""What runs when Python starts: one finder is put at the head of sys.meta_path.

Every interpreter of the environment pays for this module, so it imports sys and os and nothing else.
"""

import os
import sys

#: Values of MCORE_AUTOPATCH, in lower case, that switch everything off.
OFF = ("0", "false", "off", "no")
REMEDY = "reinstall mcore-autopatch, or set MCORE_AUTOPATCH=0 to do without it"


class Finder:
    """Meta-path finder: answers None for every module except the targets of the patches."""

    #: Names to act on. Arming replaces the first one by the targets, which the catalogue knows.
    names = frozenset(("megatron.core",))

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        """Return the spec of a target with a loader that fires its post-import hooks, and None for all others."""
        if name not in self.names:
            return None
        if name == "megatron.core":
            arm_unlocked(self)
            return None
        # A target is known only after arming, which has loaded the engine; some programs empty sys.modules after that.
        engine = sys.modules.get("mcore_autopatch.engine")
        return None if engine is None else engine.find_spec(self, name, path, target)


def arm_unlocked(finder: Finder) -> None:
    """Arm from inside find_spec, where importlib holds the lock of all imports.

    Arming imports modules, and would deadlock with a thread that is importing one of them and wants that lock.
    """
    import _imp  # built in, and loaded by every interpreter

    held = 0
    try:
        while _imp.lock_held():
            _imp.release_lock()
            held += 1
    except RuntimeError:  # another thread's by now
        pass
    try:
        arm(finder)
    finally:
        for _ in range(held):
            _imp.acquire_lock()


def arm(finder: Finder) -> None:
    """Load the engine and register the post-import hooks; on any failure the imports of the user go on unpatched."""
    # Emptied first: whatever is imported from here must not arrive here again.
    finder.names = frozenset()
    # Asked again, because scripts set the variable too, and wrapt need not be imported for nothing.
    if switched_off():
        return
    try:
        from mcore_autopatch import engine

        engine.arm(finder)
    except KeyboardInterrupt:
        del finder.names  # the next import of megatron.core arms again
        raise
    except BaseException as error:
        if type(error).__name__ == "PatchFailedError":  # asked for by MCORE_AUTOPATCH_STRICT
            raise
        say(f"no patch is applied in this process ({type(error).__name__}: {error}); {REMEDY}")


def say(text: str) -> None:
    """Write one line to stderr, where there is one."""
    try:
        sys.stderr.write(f"mcore-autopatch: {text}\n")
    except Exception:
        return


def switched_off() -> bool:
    """Tell whether MCORE_AUTOPATCH says no."""
    return os.environ.get("MCORE_AUTOPATCH", "").strip().lower() in OFF


def init() -> None:
    """Register the finder, unless it is there or MCORE_AUTOPATCH is off. Lets no exception out."""
    try:
        # CPython before 3.15 runs a .pth twice when a virtual environment starts.
        if not switched_off() and not any(type(finder) is Finder for finder in sys.meta_path):
            sys.meta_path.insert(0, Finder())
    except BaseException as error:
        # site prints a traceback at every start for an exception, and SystemExit would end the interpreter.
        say(f"not active in this process ({type(error).__name__}: {error}); {REMEDY}")
