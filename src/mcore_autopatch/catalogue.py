"""Finds the patches: those of this package, of other distributions, and of the user's own folders.

- every module of ``mcore_autopatch.patches``;
- every entry point of the group ``mcore_autopatch.patches``, which names a module;
- every ``*.py`` file in the folders of MCORE_AUTOPATCH_PATH.

Each defines one ``patch``. Its id is the name of the file or of the entry point, with hyphens.
"""

import contextlib
import functools
import importlib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from mcore_autopatch import patches
from mcore_autopatch.declaration import Patch
from mcore_autopatch.errors import PatchDefinitionError
from mcore_autopatch.foreign import interrupts, printable
from mcore_autopatch.record import Record
from mcore_autopatch.switches import Switches

GROUP = "mcore_autopatch.patches"
OWN = "mcore-autopatch"

#: Id, origin, and what imports the module.
Candidate = tuple[str, str, Callable[[], object]]


class Broken(Record):
    """A patch that could not be loaded."""

    id: str
    #: Distribution or file that brought it.
    origin: str
    error: BaseException


class Catalogue(Record):
    """The patches that could be loaded, and those that could not."""

    #: By id: those of this package in alphabetical order, then those of others.
    patches: dict[str, Patch]
    broken: tuple[Broken, ...]

    def nearest(self, patch: str) -> str:
        """Return the id that looks most like ``patch``; empty when none does."""
        import difflib  # rarely needed, and a millisecond

        return next(iter(difflib.get_close_matches(patch, self.patches, n=1, cutoff=0.5)), "")

    def unknown(self, switches: Switches) -> Iterator[str]:
        """Say which ids in the environment variables are no patch, and what may be meant."""
        broken = {one.id for one in self.broken}
        unknown = {patch: name for patch, name in switches.named().items() if patch not in {*self.patches, *broken}}
        for number, (patch, variable) in enumerate(unknown.items()):
            if number == 5:  # noqa: PLR2004
                yield f"{len(unknown) - number} more ids in MCORE_AUTOPATCH variables are no patches"
                return
            nearest = self.nearest(patch)
            hint = f"did you mean {nearest}?" if nearest else f"known: {', '.join(self.patches)}"
            yield f"{variable} names {patch[:80]!a}, which is no patch; {hint}"


def load() -> Catalogue:
    """Import every patch. One that is broken is set aside with its exception, so that the others still work."""
    found: dict[str, Patch] = {}
    broken: list[Broken] = []
    for name, brought_by, load_module in (*_own(), *_of_distributions(), *_of_folders()):
        patch_id, origin = printable(name.replace("_", "-")), printable(brought_by)
        try:
            declared = getattr(load_module(), "patch", None)
            if not isinstance(declared, Patch):
                raise PatchDefinitionError(patch_id, "the module must define patch = Patch(…)")  # noqa: TRY301
            if patch_id in found:
                raise PatchDefinitionError(patch_id, f"the id is taken by a patch of {found[patch_id].origin}")  # noqa: TRY301
            found[patch_id] = declared.replace(id=patch_id, origin=origin)
        except BaseException as error:  # a broken patch must not cost the user the others
            if interrupts(error):
                raise
            broken.append(Broken(id=patch_id, origin=origin, error=error))
    return Catalogue(patches=found, broken=tuple(broken))


def _own() -> Iterator[Candidate]:
    for name in _names():
        yield name, OWN, lambda name=name: importlib.import_module(f"{patches.__name__}.{name}")  # type: ignore[misc]


def _names() -> list[str]:
    files: set[str] = set()
    for folder in patches.__path__:
        with contextlib.suppress(OSError):  # in a zip file
            files.update(os.listdir(folder))  # noqa: PTH208
    if names := sorted(file[:-3] for file in files if file.endswith(".py") and file != "__init__.py"):
        return names
    import pkgutil  # for zip files, and for installations without sources; half a millisecond

    return sorted(module.name for module in pkgutil.iter_modules(patches.__path__))


def _of_distributions() -> Iterator[Candidate]:
    if not _anybody_brings_patches():
        return
    try:
        points = sorted(importlib.metadata.entry_points(group=GROUP), key=lambda point: point.name)
        candidates = [(point.name, _origin(point), point.load) for point in points]
    except Exception as error:  # the metadata of any package may be broken
        yield "mcore-autopatch-packages", "the metadata of an installed package", functools.partial(_raise, error)
    else:
        yield from candidates


def _origin(point: importlib.metadata.EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.value


def _anybody_brings_patches() -> bool:
    """Look for the group in the files themselves: importlib.metadata parses those of all distributions, for long."""
    for entry in sys.path:
        try:
            for name in os.listdir(entry or "."):  # noqa: PTH208
                if name.endswith((".dist-info", ".egg-info")):
                    with contextlib.suppress(OSError), open(f"{entry or '.'}/{name}/entry_points.txt", "rb") as file:  # noqa: PTH123
                        if GROUP.encode() in file.read():
                            return True
        except NotADirectoryError:  # a zip file, which only importlib.metadata can read
            return True
        except OSError:  # not there, or not to be read
            continue
    return False


def _of_folders() -> Iterator[Candidate]:
    for folder in filter(None, os.environ.get("MCORE_AUTOPATCH_PATH", "").split(os.pathsep)):
        try:
            files = sorted(
                path
                for path in Path(folder).iterdir()
                if path.suffix == ".py" and path.name[0] != "_" and path.is_file()
            )
        except (OSError, ValueError) as error:
            problem = PatchDefinitionError("MCORE_AUTOPATCH_PATH", f"{error}; correct or unset it")
            yield "mcore-autopatch-path", folder, functools.partial(_raise, problem)
            continue
        for path in files:
            yield path.stem, str(path), lambda path=path: _load_file(path)  # type: ignore[misc]


def _load_file(path: Path) -> object:
    name = f"_mcore_autopatch_path_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    # Once per process: a second look at the catalogue must find the same functions.
    if getattr(sys.modules.get(name), "__file__", None) != str(path):
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            sys.modules.pop(name, None)
            raise
        sys.modules.setdefault(name, module)
    return sys.modules[name]


def _raise(error: Exception) -> object:
    raise error
