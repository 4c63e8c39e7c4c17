"""The environment variables, read into one frozen object."""

import os
from collections.abc import Mapping

from mcore_autopatch._startup import OFF
from mcore_autopatch.declaration import Patch
from mcore_autopatch.record import Record

#: Every variable that means something.
NAMES = (
    "MCORE_AUTOPATCH",
    *(
        f"MCORE_AUTOPATCH_{name}"
        for name in ("VERBOSE", "DISABLE", "ONLY", "FORCE", "ENABLE", "PATH", "REPORT", "STRICT")
    ),
)
_ON = ("1", "true", "on", "yes")


class Switches(Record):
    """What the user asked for."""

    #: MCORE_AUTOPATCH_VERBOSE: 1 prints each decision on stderr, 2 adds reasons, timings and every rank.
    verbose: int = 0
    #: MCORE_AUTOPATCH_DISABLE: ids to leave out.
    disable: tuple[str, ...] = ()
    #: MCORE_AUTOPATCH_ONLY: the only ids to consider; empty for all.
    only: tuple[str, ...] = ()
    #: MCORE_AUTOPATCH_FORCE: ids whose affected rows are not asked. The probe still is.
    force: tuple[str, ...] = ()
    #: MCORE_AUTOPATCH_ENABLE: ids of patches that are off unless asked for.
    enable: tuple[str, ...] = ()
    #: MCORE_AUTOPATCH_STRICT: a patch that fails raises.
    strict: bool = False
    #: MCORE_AUTOPATCH_REPORT: path for this process's outcomes as JSON; empty for none.
    report: str = ""
    #: What could not be understood, in words.
    problems: tuple[str, ...] = ()

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> "Switches":
        """Read the variables; a value that means nothing is reported in ``problems`` and taken as not given."""
        problems: list[str] = []

        def flag(name: str, *, default: bool) -> bool:
            text = environ.get(name, "").strip().lower()
            if text in OFF or text in _ON:
                return text in _ON
            if text:
                problems.append(f"{name}={_shown(text)} is neither on (1) nor off (0); taken as {int(default)}")
            return default

        def ids(name: str) -> tuple[str, ...]:
            return tuple(filter(None, (word.strip().lower() for word in environ.get(name, "").split(","))))

        flag("MCORE_AUTOPATCH", default=True)  # _startup obeys it; here it is only checked for sense
        for name in environ:
            if name.startswith("MCORE_AUTOPATCH") and name not in NAMES:
                import difflib  # rarely needed, and a millisecond

                near = difflib.get_close_matches(name, NAMES, n=1)
                problems.append(f"{_shown(name)} is no switch{f'; did you mean {near[0]}?' if near else ''}")
        level = environ.get("MCORE_AUTOPATCH_VERBOSE", "").strip()
        if level.isdecimal():
            verbose = min(int(level[:9]), 2)
            if level not in ("0", "1", "2"):
                problems.append(f"MCORE_AUTOPATCH_VERBOSE={_shown(level)} is not 0, 1 or 2; taken as {verbose}")
        else:
            verbose = int(flag("MCORE_AUTOPATCH_VERBOSE", default=False))
        return cls(
            verbose=verbose,
            disable=ids("MCORE_AUTOPATCH_DISABLE"),
            only=ids("MCORE_AUTOPATCH_ONLY"),
            force=ids("MCORE_AUTOPATCH_FORCE"),
            enable=ids("MCORE_AUTOPATCH_ENABLE"),
            strict=flag("MCORE_AUTOPATCH_STRICT", default=False),
            report=environ.get("MCORE_AUTOPATCH_REPORT", ""),
            problems=tuple(problems),
        )

    def leaves_out(self, patch: Patch) -> str:
        """Say why ``patch`` is left out; empty when it is not."""
        if patch.id in self.disable:
            return "listed in MCORE_AUTOPATCH_DISABLE"
        if self.only and patch.id not in self.only:
            return "not listed in MCORE_AUTOPATCH_ONLY"
        if patch.opt_in and patch.id not in self.enable:
            return f"off unless MCORE_AUTOPATCH_ENABLE={patch.id} asks for it: {patch.opt_in}"
        return ""

    def named(self) -> dict[str, str]:
        """Every id that a variable names, with the name of that variable."""
        return {
            patch: f"MCORE_AUTOPATCH_{variable.upper()}"
            for variable in ("disable", "only", "force", "enable")
            for patch in getattr(self, variable)
        }


def _shown(text: str) -> str:
    """Quote a value of any length and content so that it fits in a message."""
    return ascii(text if len(text) <= 40 else f"{text[:40]}…")  # noqa: PLR2004
