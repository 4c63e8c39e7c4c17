"""How a patch is declared: what is broken where, how to see it in the code, and what to put in its place."""

import enum
import functools
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType, ModuleType
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from mcore_autopatch.errors import PatchDefinitionError
from mcore_autopatch.record import Record

_NONE: Mapping[str, Any] = MappingProxyType({})
#: Characters of a specifier. A number of more digits than this may be more than Python reads.
_LONGEST = 256


class Device(str, enum.Enum):
    """The kind of accelerator that the loaded torch works with."""

    #: Huawei Ascend, through torch_npu.
    NPU = "npu"
    #: NVIDIA or AMD.
    CUDA = "cuda"
    #: No accelerator.
    CPU = "cpu"


class Affected(Record):
    """One combination of releases that somebody has shown to be broken.

    Specifiers are compared with the release segment of a version alone, so that 0.16.0rc0 counts as 0.16.0 and
    2.9.0a0+50eac811a6.nv25.09 as 2.9.0: which of the two a pre-release resembles, the probe has to find out.

    Raises PatchDefinitionError for a specifier that does not parse or an empty source.
    """

    #: Version specifier of megatron-core, such as ">=0.14,<0.17".
    megatron_core: str
    #: Version specifier of torch; empty for any.
    torch: str = ""
    #: The only device that is affected; None for any.
    device: Device | None = None
    #: Who has shown it: an issue, a pull request or a commit.
    source: str

    def __post_init__(self) -> None:
        """Refuse what cannot be read."""
        name = f"Affected({self.source!a})"
        for specifier in (self.megatron_core, self.torch):
            if not isinstance(specifier, str) or len(specifier) > _LONGEST:
                problem = f"a specifier is a text of at most {_LONGEST} characters, unlike {specifier!a:.80}"
                raise PatchDefinitionError(name, problem)
            try:
                _specifiers(specifier)
            except InvalidSpecifier as error:
                raise PatchDefinitionError(name, str(error)) from error
        if not self.megatron_core.strip() or not isinstance(self.source, str) or not self.source:
            raise PatchDefinitionError(name, "megatron_core and source must be texts that are not empty")
        if self.device is not None and not isinstance(self.device, Device):
            raise PatchDefinitionError(name, f"device must be a Device or None, unlike {self.device!a:.80}")

    def __str__(self) -> str:
        parts = [f"megatron-core {self.megatron_core}", f"torch {self.torch}" if self.torch else ""]
        parts.append(f"on {self.device.value}" if self.device else "")
        return f"{', '.join(filter(None, parts))} ({self.source})"

    @staticmethod
    def contains(specifier: str, version: Version) -> bool:
        """Tell whether the release segment of ``version`` satisfies ``specifier``."""
        return _specifiers(specifier).contains(version.base_version, prereleases=True)


#: Parsed once: the same few specifiers stand in many rows.
_specifiers = functools.cache(SpecifierSet)


class Patch(Record):
    """One fix. The file that declares it gives it its id: ``mtp_inference.py`` is ``mtp-inference``.

    Raises PatchDefinitionError when a text is missing, there is no row, or there is nothing to put in place.
    """

    #: Lower-case words joined by hyphens; set by the catalogue from the file name.
    id: str = ""
    #: One line: what is fixed.
    title: str
    #: What the user sees, and where.
    symptom: str
    #: The error texts by which people search for it, exactly as a traceback or a log shows them, a line each.
    errors: tuple[str, ...] = ()
    #: Why it happens.
    cause: str
    #: What a call that worked before keeps, and what a call that failed now does.
    effect: str
    #: The upstream fix, or the issue where there is none.
    upstream: str
    #: First megatron-core release that does not need the patch; empty while there is none.
    fixed_in: str = ""
    #: Exact name of the module to act on once it has been imported.
    target: str
    #: Combinations shown to be broken. They narrow; the probe decides.
    affected: tuple[Affected, ...]
    #: Called with the target module: is the bug in this very code? An exception means that the patch FAILED.
    probe: Callable[[ModuleType], bool]
    #: For each attribute of the target, such as "GPTModel._postprocess", what makes its replacement of the original.
    #: Where releases differ in the name, "Strategy.load or load" is the first of the two that is there.
    replacements: Mapping[str, Callable[[Any], Any]] = _NONE
    #: Names that the target uses and lacks, with the values to give them. Nothing is overwritten.
    additions: Mapping[str, object] = _NONE
    #: For a bug that strikes while the target loads: makes the context manager inside which its body is executed. The
    #: probe is then called with the module as it is before that, empty but for its spec.
    execution: Callable[[ModuleType], AbstractContextManager[object]] | None = None
    #: Why the patch is off until MCORE_AUTOPATCH_ENABLE names it; empty for a patch that is on.
    opt_in: str = ""
    #: What the text of the bug's exception matches, a regular expression. While the patch is off for its ``opt_in`` and
    #: a function that it would replace raises such an exception, the log names the patch.
    recognised_by: str = ""
    #: Where the patch comes from; set by the catalogue.
    origin: str = "mcore-autopatch"

    def __post_init__(self) -> None:
        """Refuse a declaration with holes."""
        name = next((text for text in (self.id, self.title) if text and isinstance(text, str)), "patch")
        _check_texts(self, name)
        if not isinstance(self.replacements, Mapping) or not isinstance(self.additions, Mapping):
            raise PatchDefinitionError(name, "replacements and additions must be mappings")
        if not all(isinstance(path, str) for path in (*self.replacements, *self.additions)):
            raise PatchDefinitionError(name, "replacements and additions must have names for keys")
        if not all(map(callable, (self.probe, *self.replacements.values(), *filter(None, [self.execution])))):
            raise PatchDefinitionError(name, "probe, execution and the values of replacements must be functions")
        if not isinstance(self.affected, tuple | list) or not all(isinstance(row, Affected) for row in self.affected):
            raise PatchDefinitionError(name, "affected must be a tuple of Affected rows")
        if not self.affected:
            raise PatchDefinitionError(name, "at least one Affected row is needed")
        if not (self.replacements or self.additions or self.execution):
            raise PatchDefinitionError(name, "there is nothing to replace, to add or to execute in")


#: The fields that hold texts.
_TEXTS = tuple(name for name, kind in Patch.__annotations__.items() if kind is str)


def _check_texts(patch: Patch, name: str) -> None:
    for field in _TEXTS:
        text = getattr(patch, field)
        if not isinstance(text, str):
            raise PatchDefinitionError(name, f"{field} must be a text")
        if not text and not hasattr(Patch, field):  # there is no default
            raise PatchDefinitionError(name, f"{field} must not be empty")
    if patch.target in ("megatron", "megatron.core") or not all(map(str.isidentifier, patch.target.split("."))):
        raise PatchDefinitionError(name, "target must be the name of a module inside megatron.core")
    if not isinstance(patch.errors, tuple) or not all(map(_is_line, patch.errors)):
        raise PatchDefinitionError(name, "errors must be a tuple of lines of text")
    if patch.id and not all(word.isalnum() and word.isascii() and word.islower() for word in patch.id.split("-")):
        raise PatchDefinitionError(name, "an id is made of lower-case words joined by hyphens")
    try:
        re.compile(patch.recognised_by)
    except (re.error, OverflowError, RecursionError, Warning) as error:
        raise PatchDefinitionError(name, f"recognised_by is no regular expression: {error}") from error


def _is_line(text: object) -> bool:
    return isinstance(text, str) and bool(text) and text.isprintable()
