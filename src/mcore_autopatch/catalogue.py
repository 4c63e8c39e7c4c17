"""Finds the patches: every module of mcore_autopatch.patches declares one, under the name ``patch``."""

import dataclasses
import difflib
import importlib
import pkgutil
from dataclasses import dataclass

from mcore_autopatch import patches
from mcore_autopatch.declaration import Patch
from mcore_autopatch.errors import PatchDefinitionError


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The patches that could be loaded, and the patch files that could not."""

    #: By id, in alphabetical order.
    patches: dict[str, Patch]
    #: Id of a file that could not be loaded -> the exception.
    broken: dict[str, BaseException]

    def nearest(self, patch: str) -> str:
        """Return the id that looks most like ``patch``; empty when none does."""
        return next(iter(difflib.get_close_matches(patch, self.patches, n=1, cutoff=0.5)), "")


def load() -> Catalogue:
    """Import every patch file. One that is broken is set aside with its exception, so that the others still work."""
    found: dict[str, Patch] = {}
    broken: dict[str, BaseException] = {}
    for name in sorted(module.name for module in pkgutil.iter_modules(patches.__path__)):
        patch_id = name.replace("_", "-")
        try:
            declared = getattr(importlib.import_module(f"{patches.__name__}.{name}"), "patch", None)
            if not isinstance(declared, Patch):
                raise PatchDefinitionError(patch_id, f"{name}.py must define patch = Patch(…)")  # noqa: TRY301
            found[patch_id] = dataclasses.replace(declared, id=patch_id)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a broken file must not cost the user the other patches
            broken[patch_id] = error
    return Catalogue(found, broken)
