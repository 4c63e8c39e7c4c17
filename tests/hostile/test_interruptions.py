"""The user interrupts: Ctrl-C, and signal handlers that raise, while patches are loaded, decided on and left."""

import pytest
from environments import FAKE

#: Handlers as programs have them, each given a name of what it raises.
HANDLERS = {
    "exit": ("lambda *_: sys.exit(3)", "SystemExit(3)"),
    "function": ("exits", "SystemExit(5)"),
    "timeout": ("Handling().raises", "TimeoutError('too long')"),
    "callable": ("Handling()", "BaseException('stop')"),
    "partial": ("functools.partial(later, 'x')", "ValueError('x')"),
    "decorated": ("decorated", "SystemExit(5)"),
    "interrupt": ("signal.default_int_handler", "KeyboardInterrupt()"),
}
SIGNAL = """
import functools, os, signal, time
def exits(signum, frame):
    signal.signal(signum, signal.SIG_IGN)  # as many do, lest they are called twice
    helper()
def helper(): sys.exit(5)
@functools.wraps(exits)
def decorated(*args, **kwargs): exits(*args, **kwargs)
def later(text, number, frame): raise ValueError(text)
class Handling:
    def raises(self, number, frame): raise TimeoutError("too long")
    def __call__(self, number, frame): raise BaseException("stop")
def struck(*_):
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)
    return True
"""


@pytest.mark.parametrize(("handler", "raised"), HANDLERS.values(), ids=HANDLERS)
@pytest.mark.parametrize("moment", ["probe", "builder", "enter", "leave", "log", "load"])
def test_what_a_signal_handler_raises_passes_through_us(run, handler, raised, moment):
    # Guard: interrupts(), asked wherever everything is caught.
    done = run(f"""{SIGNAL}
import contextlib, logging
from mcore_autopatch import catalogue
@contextlib.contextmanager
def entering(module):
    struck()
    yield
@contextlib.contextmanager
def leaving(module):
    yield
    struck()
moment = {moment!r}
fields = {{"probe": {{"probe": struck}},
    "enter": {{"execution": entering, "replacements": {{}}}}, "leave": {{"execution": leaving, "replacements": {{}}}},
    "builder": {{"replacements": {{"function": lambda f: struck() and f}}}}}}.get(moment, {{}})
if moment == "log":
    logging.Handler.emit = struck
    logging.getLogger("mcore_autopatch").addHandler(logging.Handler())
    logging.getLogger("mcore_autopatch").setLevel(1)
if moment == "load":
    catalogue._own = lambda: iter([("one", "x", struck)])
else:
    use(patch(**fields))
signal.signal(signal.SIGTERM, {handler})
try:
    if moment == "load":
        catalogue.load()
    else:
        import megatron.core.models.model
except BaseException as error:
    print(repr(error))
signal.signal(signal.SIGTERM, signal.SIG_DFL)
catalogue._own = lambda: iter([])
import megatron.core.models.model
""")
    assert done.stdout == f"{raised}\n"


def test_sys_exit_in_a_handler_ends_the_process_with_its_code(run):
    done = run(
        f"""{SIGNAL}
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
use(patch(probe=struck))
import megatron.core.models.model
print("not reached")
""",
        check=7,
    )
    assert done.stdout == ""


def test_a_function_that_looks_at_its_caller_is_no_signal_handler(run):
    # Guard: interrupts() wants the number of a signal before the frame.
    done = run(
        """
def looking(module):
    def inner(name="x", frame=None):
        frame = sys._getframe(1)
        raise SystemExit(3)
    inner()
use(patch(probe=looking))
import megatron.core.models.model as m
print(m.function(1), mcore_autopatch.outcomes()[0].status.name)
""",
        stderr=None,
    )
    assert done.stdout == "('function', 1, 1) FAILED\n"


@pytest.mark.parametrize("first", ["KeyboardInterrupt", "strict"])
def test_all_contexts_are_left_though_leaving_one_is_interrupted(run, first):
    # Guard: ExitStack in _execute().
    raised = "raise KeyboardInterrupt" if first == "KeyboardInterrupt" else "raise ValueError"
    done = run(
        f"""
import contextlib
def context(name):
    @contextlib.contextmanager
    def execution(module):
        yield
        print("left", name)
        if name == "two": {raised}
    return execution
use(*(patch(name, replacements={{}}, execution=context(name)) for name in ("one", "two", "zzz")))
try:
    import megatron.core.models.model
except BaseException as error:
    print(type(error).__name__)
""",
        stderr=None,
        MCORE_AUTOPATCH_STRICT="1",
    )
    raised = "KeyboardInterrupt" if first == "KeyboardInterrupt" else "PatchFailedError"
    assert done.stdout == f"left zzz\nleft two\nleft one\n{raised}\n"


@pytest.mark.parametrize("delay", [0.0002, 0.01, 0.02, 0.03, 0.05, 0.08])
def test_an_interrupt_at_any_moment_of_arming_interrupts_and_the_next_import_arms(python, delay):
    # Guard: arm() in _startup gives the finder its first name back.
    code = f"""
import signal, sys, torch
signal.signal(signal.SIGALRM, signal.default_int_handler)
try:
    signal.setitimer(signal.ITIMER_REAL, {delay})
    import megatron.core
    signal.setitimer(signal.ITIMER_REAL, 0)
except KeyboardInterrupt:
    signal.setitimer(signal.ITIMER_REAL, 0)
import megatron.core.models.model as m
import mcore_autopatch
print(m.function(1), len(mcore_autopatch.outcomes()) > 5)
"""
    done = python("-c", code, overlays=[FAKE], check=0)
    # Python's own asyncio, which wrapt imports, cannot be imported any more when its first import was interrupted.
    broken = "no patch is applied in this process (NameError: name " in done.stderr
    assert done.stdout == f"('function', 1, 1) {not broken}\n"


def test_an_interpreter_that_ends_while_a_thread_is_arming_ends(python):
    code = """
import sys, threading, time, torch
from mcore_autopatch import catalogue
started = threading.Event()
def slow():
    started.set()
    time.sleep(60)
catalogue.load = slow
threading.Thread(target=__import__, args=("megatron.core",), daemon=True).start()
started.wait(10)
print("end")
"""
    done = python("-c", code, overlays=[FAKE], check=0, timeout=30)
    assert (done.stdout, done.stderr) == ("end\n", "")


@pytest.mark.parametrize("where", ["atexit", "__del__", "excepthook"])
def test_a_first_import_while_the_interpreter_ends_works_or_fails_as_without_us(python, where):
    code = f"""
import atexit, sys
def late():
    try:
        import megatron.core.models.model as m
        print(m.function(1))
    except ImportError as error:  # Python itself has stopped to import
        print("sys.meta_path is None" in str(error))
class Last:
    def __del__(self, late=late): late()
def hook(*_): late()
if {where!r} == "atexit":
    atexit.register(late)
elif {where!r} == "__del__":
    sys.last = Last()
else:
    sys.excepthook = hook
    raise ValueError
"""
    done = python("-c", code, overlays=[FAKE], check=1 if where == "excepthook" else 0)
    off = python("-c", code, overlays=[FAKE], check=None, MCORE_AUTOPATCH="0")
    assert (done.stdout, done.stderr) == (off.stdout, off.stderr)


def test_what_a_signal_handler_raises_while_we_load_our_dependencies_passes_through_us(python, tmp_path):
    (tmp_path / "wrapt.py").write_text("import os, signal, time; os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)")
    code = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
import megatron.core.models.model
print("not reached")
"""
    done = python("-c", code, overlays=[tmp_path, FAKE], check=7, timeout=60)
    assert (done.stdout, done.stderr) == ("", "")


def test_after_a_signal_handler_has_raised_the_next_import_arms(python, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "wrapt.py").write_text("import os, signal, time; os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)")
    code = f"""
import signal, sys
def handler(*_): raise TimeoutError
signal.signal(signal.SIGTERM, handler)
try:
    import megatron.core
except TimeoutError:
    sys.path.remove({str(folder)!r})
import megatron.core.models.model
import mcore_autopatch
print(len(mcore_autopatch.outcomes()) > 5)
"""
    done = python("-c", code, overlays=[FAKE, folder], check=0, timeout=60)
    assert done.stdout == "True\n"
