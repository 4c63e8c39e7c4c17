"""All of mcore-autopatch that runs when Python starts: this module is itself the finder put into sys.meta_path."""

# Every interpreter of the environment pays for each line here, most where no .pyc can be written. os is imported where
# it is used, because Python up to 3.11 takes apart, entry by entry, what a finder still refers to when it ends. A class
# would cost a tenth more, and annotations cost too.
# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: ANN001, ANN202

import sys

#: Values of MCORE_AUTOPATCH, in lower case, that switch everything off.
OFF = ("0", "false", "off", "no")
#: Names to act on. Arming replaces the first one by the targets, which the catalogue knows.
names = FIRST = ("megatron.core",)  # type: tuple[str, ...]
finder = sys.modules[__name__]


def find_spec(name, path=None, target=None):
    """Return the spec of a target with a loader that fires its post-import hooks, and None for all others."""
    if name not in names:
        return None
    if name not in FIRST:
        # Arming has loaded the engine; some programs empty sys.modules after that.
        engine = sys.modules.get("mcore_autopatch.engine")
        return engine and engine.find_spec(finder, name, path, target)
    import _imp  # built in, and loaded by every interpreter

    # importlib holds the lock of all imports here. Arming imports modules, and would deadlock with a thread that is
    # importing one of them and wants that lock.
    held = 0
    try:
        try:
            while _imp.lock_held():
                _imp.release_lock()
                held += 1
        except RuntimeError:  # another thread's by now
            pass
        try:
            from mcore_autopatch._startup import arm
        except Exception as error:
            say(f"no patch is applied in this process ({type(error).__name__}: {error})")
        else:
            arm(finder)
    finally:
        for _ in range(held):
            _imp.acquire_lock()


def switched_off():
    """Tell whether MCORE_AUTOPATCH says no."""
    import os

    return os.environ.get("MCORE_AUTOPATCH", "").strip().lower() in OFF


def registered():
    """Return the finder in sys.meta_path, or None; pex imports this module anew, and then it is another than this."""
    for other in sys.meta_path:
        if type(other) is type(sys) and other.__name__ == __name__:  # type: ignore[comparison-overlap]
            return other
    return None


def init():
    """Register the finder, unless it is there or MCORE_AUTOPATCH is off. Lets no exception out."""
    try:
        if not registered() and not switched_off():
            sys.meta_path.insert(0, finder)
    except BaseException as error:
        # site prints a traceback at every start for an exception, and SystemExit would end the interpreter.
        say(f"not active in this process ({type(error).__name__}: {error})")


def say(text, remedy="; reinstall mcore-autopatch, or set MCORE_AUTOPATCH=0 to do without it"):
    """Write one line to stderr, where there is one."""
    try:
        sys.stderr.write(f"mcore-autopatch: {text}{remedy}\n")
    except Exception:
        return
