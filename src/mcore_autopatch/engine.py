"""Applies patches: registers wrapt's post-import hooks, makes them fire safely, decides, and replaces.

The only module that knows wrapt. wrapt says where and when; the call of a replacement goes through plain functions,
because megatron-core pickles some of what is replaced here.
"""

import contextlib
import functools
import importlib.util
import inspect
import itertools
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import wrapt

from mcore_autopatch import _startup, catalogue, reporting
from mcore_autopatch._importlib_bootstrap import Loader
from mcore_autopatch.attributes import MARK, function_of, locate, look_up, marks, present
from mcore_autopatch.declaration import Affected, Patch
from mcore_autopatch.errors import AutopatchError, PatchFailedError
from mcore_autopatch.foreign import described, interrupts
from mcore_autopatch.matching import Combination, match
from mcore_autopatch.outcome import Outcome, SkipReason, Status
from mcore_autopatch.switches import Switches

_switches = Switches()
_patches: dict[str, list[Patch]] = {}
#: Targets whose hook is registered with wrapt and has not fired.
_pending: set[str] = set()
#: Thread and target of each look-up that is going on.
_searches: set[tuple[int, str]] = set()


def install() -> tuple[Outcome, ...]:
    """Do by hand what the start-up hook does, also for targets that are already imported.

    Needed only where Python does not read .pth files: ``pip install --target`` with PYTHONPATH, ``python -S``, zip
    applications. Call it in every process, before megatron.core is imported if possible. A second call patches what
    has been imported since; whatever is patched stays as it is. With MCORE_AUTOPATCH=0 it does nothing.

    Raises PatchFailedError if a patch fails and MCORE_AUTOPATCH_STRICT is set, and nothing else.
    """
    if _startup.switched_off():
        return ()
    finder = _startup.finder
    # First, because a finder ahead of ours that finds a target by itself would leave it unpatched.
    sys.meta_path[:] = [finder, *(other for other in sys.meta_path if other is not finder)]
    _startup.arm(finder)
    return reporting.outcomes()


def arm(finder: Any) -> None:
    """Read the switches, load the catalogue, register a hook for each target, and tell ``finder`` the targets."""
    global _switches, _patches
    _switches = Switches.read()
    reporting.configure(_switches)
    if _switches.report:
        _report_at_exit(_switches.report)
    found = catalogue.load()
    for problem in (*_switches.problems, *found.unknown(_switches)):
        reporting.warn(problem)
    for broken in found.broken:
        _record_failure(broken.id, broken.error, f"it cannot be loaded from {broken.origin}", origin=broken.origin)
    by_target: dict[str, list[Patch]] = {}
    for patch in found.patches.values():
        by_target.setdefault(patch.target, []).append(patch)
        if reporting.recorded(patch) is None:
            reporting.record(_waiting(patch))
    _patches = by_target
    finder.names = frozenset(by_target)
    for target in by_target:
        _hook(target)
    _put_in_order(finder)


def _put_in_order(finder: Any) -> None:
    """Move wrapt's finder, which it puts first with its first hook, behind ours, for it to look up what ours does not.

    All others stay where they are. Programs take a finder of theirs away with sys.meta_path.pop(0).
    """
    ahead = [other for other in sys.meta_path if _is_wrapts(other)]
    if ahead and any(other is finder for other in sys.meta_path):
        rest = [other for other in sys.meta_path if not _is_wrapts(other)]
        place = rest.index(finder) + 1
        # Assigning the slice keeps the list that importlib is walking now, and skips no finder of it.
        sys.meta_path[:] = [*rest[:place], *ahead, *rest[place:]]


def _is_wrapts(finder: object) -> bool:
    return type(finder).__module__ == wrapt.register_post_import_hook.__module__


def _hook(target: str) -> None:
    """Have the patches of a target applied when it is loaded, or at once if it is."""
    module = sys.modules.get(target)
    if module is None:
        if target not in _pending:
            _pending.add(target)
            wrapt.register_post_import_hook(functools.partial(_fire, target), target)
    # One that is being executed now, by a program that calls install() from inside it, has to wait.
    elif not getattr(getattr(module, "__spec__", None), "_initializing", False):
        _fire(target, module)


def _report_at_exit(path: str) -> None:
    try:
        from mcore_autopatch import fleet

        fleet.write_at_exit(path)
    except Exception as error:  # the patches do not depend on it
        if interrupts(error):
            raise
        reporting.warn(f"MCORE_AUTOPATCH_REPORT: no report will be written: {described(error)}")


def _waiting(patch: Patch) -> Outcome:
    if off := _switches.leaves_out(patch):
        return _skipped(patch, SkipReason.SWITCHED_OFF, off)
    detail = f"{patch.target} is not imported yet"
    return Outcome(patch=patch.id, status=Status.WAITING, detail=detail, origin=patch.origin)


def _skipped(patch: Patch, reason: SkipReason, detail: str, row: Affected | None = None) -> Outcome:
    return Outcome(
        patch=patch.id, status=Status.SKIPPED, reason=reason, detail=detail, affected=row, origin=patch.origin
    )


def _fire(target: str, module: ModuleType) -> None:
    _pending.discard(target)
    for patch in _patches.get(target, ()):
        before = reporting.recorded(patch)
        if not patch.execution:
            apply(patch, module)
        elif before is not None and before.status is Status.WAITING:
            reporting.record(_skipped(patch, SkipReason.BUG_ABSENT, f"{target} had been imported before, and loaded"))


def find_spec(finder: Any, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
    """Find the spec of a target as importlib would without us, and give it a loader that fires the target's hooks."""
    search = threading.get_ident(), name
    if search in _searches:  # by a finder that we ask, and that asks all finders
        return None
    _searches.add(search)
    # So marked, wrapt's finder steps aside for a finder that asks all others: it would import the parent package again,
    # and deadlocks where that package starts threads.
    all_marks = [vars(other)["in_progress"] for other in sys.meta_path if _is_wrapts(other)]
    marked = [in_progress for in_progress in all_marks if name not in in_progress]
    for in_progress in marked:
        in_progress[name] = True
    try:
        # Those before ours have been asked, or are asking us.
        for other in list(itertools.dropwhile(lambda other: other is not finder, sys.meta_path))[1:]:
            look_up = getattr(other, "find_spec", None)
            if look_up is None:
                # A finder of the kind that Python 3.12 dropped has its turn now; importlib and wrapt can ask it.
                return None
            spec: ModuleSpec | None = look_up(name, path, target)
            if spec is not None:
                # A spec that does not let itself be changed is better than no import.
                with contextlib.suppress(Exception):
                    _wrap_loader(spec)
                return spec
    finally:
        _searches.discard(search)
        for in_progress in marked:
            in_progress.pop(name, None)
    return None


def _wrap_loader(spec: ModuleSpec) -> None:
    loader = spec.loader
    # A lazy loader executes the body later, through the loader inside it.
    if isinstance(loader, importlib.util.LazyLoader):
        inner = loader.loader  # type: ignore[attr-defined]
        loader.loader = Loader.around(inner, spec.name, _execute)  # type: ignore[attr-defined]
    elif hasattr(loader, "exec_module"):
        spec.loader = Loader.around(loader, spec.name, _execute)


def _execute(target: str, module: ModuleType) -> Iterator[None]:
    """Do what is due before the body of a target is executed, yield, and do what is due after it."""
    listed = target in sys.modules  # importlib.util lets programs execute a module that is not
    with ExitStack() as contexts:
        for patch in _patches.get(target, ()):
            if patch.execution:
                apply(patch, module, contexts)
        yield
    if listed:
        # A body may put something else in its place, which importers get, or nothing: KeyError, as importlib raises it.
        module = sys.modules[target]
    was_pending = target in _pending
    wrapt.notify_module_loaded(module)
    # wrapt drops a hook that has fired, so for a reload or a second import ours is called from here.
    if not was_pending or target in _pending:
        _fire(target, module)
    if listed:
        # importlib takes the module from there, whatever a hook has done.
        sys.modules.setdefault(target, module)


def _leave(patch: Patch, context: AbstractContextManager[object]) -> None:
    try:
        # It is not told of an exception of the body, so that it cannot swallow one.
        context.__exit__(None, None, None)
    except BaseException as error:
        if interrupts(error):
            raise
        _record_failure(patch.id, error, "something may be left behind", origin=patch.origin)


def apply(patch: Patch, module: ModuleType, contexts: ExitStack | None = None) -> Outcome:
    """Decide about one patch, apply it if it is needed, and record the outcome.

    For a patch that acts while the body of its target is executed, leaving the context manager that has been entered
    is left to ``contexts``.

    Only an interruption by the user gets out, and PatchFailedError if MCORE_AUTOPATCH_STRICT is set: wrapt would turn
    any other exception into a failure of the user's import.
    """
    started = time.perf_counter()
    try:
        before = reporting.recorded(patch)
        if before is not None and before.status is Status.APPLIED and _stays(patch, module):
            return before
        outcome = _decide(patch, module, contexts)
        seconds = time.perf_counter() - started
        reporting.record(outcome, seconds=seconds if _switches.verbose > 1 else None)
    except BaseException as error:
        if interrupts(error):
            raise
        outcome = _record_failure(patch.id, error, f"{patch.target} is unchanged", origin=patch.origin)
    return outcome


def _record_failure(patch_id: str, error: BaseException, consequence: str, origin: str = "mcore-autopatch") -> Outcome:
    problem = described(error)
    outcome = Outcome(
        patch=patch_id,
        status=Status.FAILED,
        detail=f"{problem}; {consequence}",
        traceback="" if isinstance(error, AutopatchError) else _trace(error),
        origin=origin,
    )
    reporting.record(outcome)
    if _switches.strict:
        raise PatchFailedError(patch_id, problem) from error
    return outcome


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


def _decide(patch: Patch, module: ModuleType, contexts: ExitStack | None) -> Outcome:
    if off := _switches.leaves_out(patch):
        if patch.recognised_by and not _switches.replace(enable=(patch.id,)).leaves_out(patch):
            _decide(_announcement(patch, off), module, None)
        return _skipped(patch, SkipReason.SWITCHED_OFF, off)
    if getattr(getattr(module, "__spec__", None), "loader", None) is None:
        return _skipped(patch, SkipReason.STAND_IN, f"{patch.target} was not loaded from a file")
    here = Combination.loaded()
    row, reason, detail = match(patch, here)
    if reason and patch.id not in _switches.force:
        return _skipped(patch, reason, detail)
    if by_whom := _replaced_by(patch, module):
        return _skipped(patch, SkipReason.ALREADY_PATCHED, by_whom, row)
    if not patch.probe(module):
        return _skipped(patch, SkipReason.BUG_ABSENT, f"{detail}, but the loaded code does not have the bug", row)
    if patch.execution and contexts is not None:
        context = patch.execution(module)
        context.__enter__()
        contexts.callback(_leave, patch, context)
    _replace(patch, module)
    how = "rows not asked (MCORE_AUTOPATCH_FORCE)" if row is None else f"affected: {row}"
    return Outcome(patch=patch.id, status=Status.APPLIED, detail=f"{here}; {how}", affected=row, origin=patch.origin)


def _announcement(patch: Patch, off: str) -> Patch:
    """Return what stands in for a patch that nobody has asked for: when the bug strikes, the log names the patch."""

    def announcing(original: Callable[..., Any]) -> Callable[..., Any]:
        def replacement(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            except Exception as error:
                with contextlib.suppress(Exception):  # whatever a log handler of the user's raises is not the bug
                    if re.search(patch.recognised_by, str(error)):
                        reporting.warn(f"{patch.id} would have prevented this ({patch.title}). It is {off}")
                raise

        return replacement

    stand_in = dict.fromkeys(patch.replacements, announcing)
    return patch.replace(id=f"{patch.id}-announcement", opt_in="", replacements=stand_in, additions={}, execution=None)


def _stays(patch: Patch, module: ModuleType) -> bool:
    """Tell whether a patch that has been applied is still there, or under what somebody has put in its place since.

    A reload leaves neither, but upstream's code.
    """
    if patch.execution:
        return False
    if patch.replacements:
        return bool(_replaced_by(patch, module))
    return all(name in vars(module) for name in patch.additions)


def _replaced_by(patch: Patch, module: ModuleType) -> str:
    """Say who has replaced what the patch would replace; empty where the code is upstream's."""
    for path in patch.replacements:
        try:
            function = look_up(module, path)
        except AttributeError:  # the probe says whether the bug went with it
            continue
        if patch.id in marks(function):
            return f"{path} carries this patch already"
        # What only wraps the original, as decorators do, calls it and leaves the bug in.
        writer = getattr(inspect.unwrap(function), "__globals__", {}).get("__name__", "")
        if writer.partition(".")[0] not in {"", "megatron", "torch", patch.target.partition(".")[0]}:
            return f"{path} has been replaced by {writer}"
    return ""


def _replace(patch: Patch, module: ModuleType) -> None:
    """Build all replacements, then set everything; when setting one fails, what came before it is taken back."""
    found = {path: locate(module, path) for path in patch.replacements}
    # A probe may load the module anew, and what has been replaced then is not replaced again.
    found = {path: place for path, place in found.items() if patch.id not in marks(function_of(place[2]))}
    built = {path: _build(patch, module, path, raw, patch.replacements[path]) for path, (_, _, raw) in found.items()}
    done: list[tuple[Any, str, Any]] = []
    try:
        for path, (owner, name, raw) in found.items():
            setattr(owner, name, built[path])
            done.append((owner, name, raw))
    except BaseException:
        for owner, name, raw in done:
            setattr(owner, name, raw)
        raise
    for name, value in patch.additions.items():
        vars(module).setdefault(name, value)


def _build(patch: Patch, module: ModuleType, path: str, raw: Any, make: Callable[[Any], Any]) -> Any:
    """Make one replacement: it has the original's name, signature and kind, and pickles by its place in the module."""
    original = function_of(raw)
    replacement = functools.update_wrapper(make(original), original)
    replacement.__module__, replacement.__qualname__ = module.__name__, present(module, path)
    setattr(replacement, MARK, (*marks(original), patch.id))
    return replacement if original is raw else type(raw)(replacement)
