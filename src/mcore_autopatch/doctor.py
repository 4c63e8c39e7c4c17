"""Everything that silently disables or weakens the fixes in this process and its environment."""

import importlib.metadata
import os
import re
import site
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import mcore_autopatch
from mcore_autopatch import _startup, catalogue, installed, reporting
from mcore_autopatch.attributes import look_up, marks, present
from mcore_autopatch.outcome import Outcome, SkipReason, Status
from mcore_autopatch.switches import Switches

DISTRIBUTION = "mcore-autopatch"
LINE = "mcore_autopatch.pth"
CONTENT = b'import os; os.environ.get("MCORE_AUTOPATCH") == "0" or __import__("_mcore_autopatch").init()\n'
REINSTALL = f"python -m pip install --force-reinstall {DISTRIBUTION}"
BY_HAND = (
    'or call mcore_autopatch.install() at the top of the program\'s main file, outside if __name__ == "__main__", '
    "so that spawned workers call it too"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as it should be."""

    #: What is the case.
    what: str
    #: Why it matters.
    why: str
    #: What to do.
    remedy: str


def findings(*, active: bool, early: Sequence[str] = ()) -> list[Finding]:
    """Return all findings. ``active``: the hook was registered at the start; ``early``: targets imported before it."""
    found = [*_switches(), *_start_up_files(), *_distributions(), *_dependencies(), *_copies(), *_others(), *_stale()]
    if not active:
        found.insert(0, inactive())
    elif sys.meta_path[0] is not _startup.finder:
        ahead = type(sys.meta_path[0])
        found.append(
            Finding(
                what=f"{ahead.__module__}.{ahead.__qualname__} stands before our finder in sys.meta_path",
                why="a module that it finds itself is loaded without our finder, and may stay unpatched",
                remedy="call mcore_autopatch.install() after that finder has been put there",
            )
        )
    found += [
        Finding(
            what=f"{target} is imported while Python starts",
            why="whoever imports it then holds the unpatched functions",
            remedy="find the .pth file or sitecustomize that imports it, and let it do that later",
        )
        for target in early
    ]
    found += [
        Finding(
            what=f"patch {outcome.patch} failed: {outcome.detail}",
            why="the bug that it fixes is still there",
            remedy=f"report it, with MCORE_AUTOPATCH_VERBOSE=2; MCORE_AUTOPATCH_DISABLE={outcome.patch} leaves it out",
        )
        for outcome in reporting.outcomes()
        if outcome.status is Status.FAILED
    ]
    return found


def _switches() -> Iterator[Finding]:
    switches = Switches.read()
    for problem in (*switches.problems, *catalogue.load().unknown(switches)):
        why = "the patches may not be switched as you think"
        yield Finding(what=problem, why=why, remedy="correct or unset the variable")


def _site_folders() -> list[Path]:
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    # A folder can be listed twice, and through links.
    return list(dict.fromkeys(Path(folder).resolve() for folder in [*site.getsitepackages(), *user]))


def _home() -> Path:
    return Path(mcore_autopatch.__file__).resolve().parents[1]


def inactive() -> Finding:
    """Say why the finder was not registered when Python started, or does nothing."""
    why = "no patch is applied in any process that is started like this one"
    user = Path(site.getusersitepackages(), LINE)
    if _startup.switched_off():
        value = os.environ["MCORE_AUTOPATCH"]
        what, remedy = f"switched off by MCORE_AUTOPATCH={value}", "unset MCORE_AUTOPATCH"
    elif _startup.failure:
        what, remedy = f"the patches cannot be loaded: {_startup.failure}", f"reinstall what it names, or {REINSTALL}"
    elif sys.flags.no_site:
        what, remedy = "Python was started with -S and reads no .pth file", f"leave out -S, {BY_HAND}"
    elif any(Path(folder, LINE).exists() for folder in _site_folders()):
        what = f"{LINE} is installed, but the finder is not in sys.meta_path"
        remedy = f"look for a message at the start of Python, and reinstall: {REINSTALL}"
    elif user.exists():
        what = (
            f"{user} is not read, because the user site is off (python -s, PYTHONNOUSERSITE or a virtual environment)"
        )
        remedy = f"install into this environment: python -m pip install {DISTRIBUTION}, {BY_HAND}"
    else:
        what = f"{DISTRIBUTION} is loaded from {_home()}, and {LINE} is in no site-packages folder of this Python"
        why = (
            "Python reads .pth files in site-packages only, so with pip install --target, PYTHONPATH or a zip "
            f"application the hook is not active: {why}"
        )
        # While the folder is on PYTHONPATH, pip would say that the requirement is satisfied already.
        remedy = (
            f"take {_home()} out of PYTHONPATH and install into this environment: "
            f"{sys.executable} -m pip install {DISTRIBUTION}, {BY_HAND}"
        )
    return Finding(what=what, why=why, remedy=remedy)


def _start_up_files() -> Iterator[Finding]:
    lines = [folder / LINE for folder in _site_folders() if (folder / LINE).exists()]
    if len(lines) > 1:
        yield Finding(
            what=f"{LINE} is there {len(lines)} times: {', '.join(map(str, lines))}",
            why="the copies may belong to different versions, and the first one decides",
            remedy=f"uninstall until pip finds none (python -m pip uninstall {DISTRIBUTION}), then install once",
        )
    for path in lines:
        if sys.version_info >= (3, 18) and not path.with_suffix(".start").exists():
            yield Finding(
                what=f"{path} has no mcore_autopatch.start beside it",
                why="this Python ignores import lines in .pth files and reads .start files instead",
                remedy=REINSTALL,
            )
        if path.read_bytes() != CONTENT:
            yield Finding(what=f"{path} was changed", why="it may not register the finder", remedy=REINSTALL)


def _distributions() -> Iterator[Finding]:
    """Look for other copies of this package, and for other distributions that own files of it."""
    own = []
    for distribution in importlib.metadata.distributions():
        name = canonicalize_name(distribution.metadata["Name"] or "unnamed")
        if name == DISTRIBUTION:
            own.append(distribution)
        elif any(re.match(r"_?mcore_autopatch[./]", str(file)) for file in distribution.files or ()):
            yield Finding(
                what=f"the distribution {name} has installed files of mcore_autopatch",
                why="what runs may not be what pip says is installed",
                remedy=f"uninstall {name}, then {REINSTALL}",
            )
    places = list(dict.fromkeys(str(Path(str(one.locate_file(""))).resolve()) for one in own))
    if len(places) > 1:
        yield Finding(
            what=f"{DISTRIBUTION} is installed {len(places)} times: {', '.join(places)}",
            why="the first one on sys.path is used, and its version may not be the one that you expect",
            remedy="keep the one in site-packages of this Python; take the others out of PYTHONPATH and delete them",
        )
    if own and own[0].version != mcore_autopatch.__version__:
        yield Finding(
            what=f"version {mcore_autopatch.__version__} is loaded from {_home()}, but {own[0].version} is installed",
            why="a folder before site-packages on sys.path hides the installed package",
            remedy="remove that folder from PYTHONPATH",
        )


def _version(distribution: str) -> str:
    # Not importlib.metadata.version, in the place of which MindSpeed puts a function of its own.
    return importlib.metadata.distribution(distribution).version


def _dependencies() -> Iterator[Finding]:
    try:
        wanted = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return
    for requirement in map(Requirement, wanted):
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = _version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            version = ""
        if not version or not requirement.specifier.contains(version, prereleases=True):
            yield Finding(
                what=f"{requirement.name} is {version or 'not installed'}; {requirement} is needed",
                why="the patches may not be applied, or not safely",
                remedy=f'python -m pip install "{requirement}"',
            )


def _copies() -> Iterator[Finding]:
    """Look for two megatron-cores, and for versions that are not the installed ones."""
    folders = [Path(entry or ".", "megatron", "core") for entry in sys.path]
    found = list(dict.fromkeys(str(folder.resolve()) for folder in folders if (folder / "__init__.py").exists()))
    if len(found) > 1:
        yield Finding(
            what=f"there are {len(found)} copies of megatron-core on sys.path: {', '.join(found)}",
            why="the first one is used; a process with another PYTHONPATH or working folder may use another",
            remedy="uninstall the copies that you do not mean, or set PYTHONPATH in every process",
        )
    loaded = {"megatron-core": installed.megatron_core() if "megatron.core" in sys.modules else None}
    for name, version in {**loaded, "torch": installed.torch()}.items():
        try:
            stated = _version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        one, other = installed.parsed(version), installed.parsed(stated)
        if one and other and one.base_version != other.base_version:
            yield Finding(
                what=f"{name} {version} is loaded, but pip says {stated}",
                why="patches go by what is loaded; tools that ask pip see another version",
                remedy=f"check PYTHONPATH and the working folder for another copy of {name}",
            )


def _places(*states: Status | SkipReason) -> Iterator[tuple[Outcome, str, ModuleType]]:
    """Yield outcome, attribute path and target module of everything that patches in one of ``states`` replace."""
    patches = catalogue.load().patches
    for outcome in reporting.outcomes():
        patch = patches.get(outcome.patch)
        module = sys.modules.get(patch.target) if patch else None
        if patch and module and {outcome.status, outcome.reason} & set(states):
            for path in patch.replacements:
                yield outcome, present(module, path), module


def _others() -> Iterator[Finding]:
    """Look for what somebody has put in the place of a patch, after it or before it."""
    for outcome, path, module in _places(Status.APPLIED, SkipReason.ALREADY_PATCHED):
        try:
            now: Any = look_up(module, path)
        except AttributeError:
            now = None
        if outcome.patch in marks(now):
            continue
        writer = getattr(now, "__globals__", {}).get("__name__") or getattr(now, "__module__", None) or "somebody"
        upstream = writer.partition(".")[0] in {"megatron", "torch"}
        place = f"{module.__name__}.{path}"
        if outcome.status is not Status.APPLIED and not upstream:
            yield Finding(
                what=f"{place} was replaced by {writer} before patch {outcome.patch} could be applied",
                why="the patch stands back, because it cannot tell whether the replacement has the bug",
                remedy=f"import {module.__name__}, or call mcore_autopatch.install(), before {writer} patches it",
            )
        elif outcome.status is Status.APPLIED and upstream:
            yield Finding(
                what=f"{place} was put back to {writer}'s own after patch {outcome.patch} was applied",
                why="the bug is there again",
                remedy=f"import {module.__name__} before anybody else patches it, so that the fix is put back",
            )
        elif outcome.status is Status.APPLIED:
            yield Finding(
                what=f"{place} was replaced by {writer} after patch {outcome.patch} was applied",
                why="the fix is out of use unless the replacement calls what it has replaced",
                remedy=f"none if it calls it, as verl's does; otherwise check that {writer} has the fix",
            )


def _stale() -> Iterator[Finding]:
    for outcome, path, module in _places(Status.APPLIED):
        if "." in path:  # a method is looked up when it is called
            continue
        original = getattr(vars(module).get(path), "__wrapped__", None)
        home = getattr(original, "__module__", None)
        for name, other in list(sys.modules.items()):
            # Only real modules: some packages put objects into sys.modules that import things when they are asked.
            if type(other) is not ModuleType or other is module or name == home:
                continue
            for attribute, value in list(vars(other).items()):
                if original is not None and value is original:
                    replaced = f"the function that patch {outcome.patch} has replaced in {module.__name__}"
                    yield Finding(
                        what=f"{name}.{attribute} is {replaced}",
                        why="that module has imported it before it was patched, and calls the unpatched one",
                        remedy=f"import {module.__name__} before {name}, or call mcore_autopatch.install() first",
                    )
