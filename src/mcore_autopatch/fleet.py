"""Reports of many processes: each writes its own at exit, and ``summarize`` reads them all."""

import json
import os
import re
import socket
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from multiprocessing import util
from pathlib import Path
from typing import Any

from mcore_autopatch import reporting, snapshot
from mcore_autopatch.foreign import described

_template = ""


class _Anchor:
    """What register_after_fork needs to hold on to."""


_anchor = _Anchor()


def write_at_exit(template: str) -> None:
    """Write this process's report to ``template`` when it ends, and let its forked children do the same.

    ``{host}``, ``{rank}`` and ``{pid}`` in ``template`` are replaced. A process that is killed writes nothing.
    """
    global _template
    # Made absolute now, because the program may change its folder.
    absolute = os.path.abspath(template)  # noqa: PTH100
    if not _template:
        util.register_after_fork(_anchor, _register)
        _register()
    _template = absolute


def _register(_anchor: object = None) -> None:
    # A child of multiprocessing ends without atexit, but runs these; a forked one has dropped those of its parent.
    util.Finalize(None, _write, exitpriority=-100)


def _write() -> None:
    """Write the report in one step, so that nobody ever reads half of one. A failure is one warning."""
    path, scratch = _template, None
    try:
        for name, value in (
            ("{host}", socket.gethostname()),
            ("{rank}", os.environ.get("RANK", "none")),
            ("{pid}", str(os.getpid())),
        ):
            # What a host calls itself, or a launcher a rank, does not say in which folder.
            path = path.replace(name, re.sub(r"[^\w.-]|^\.+", "_", value))
        if os.path.isdir(path):  # noqa: PTH112
            raise IsADirectoryError("it is a folder; give the name of a file, with {pid} in it")  # noqa: TRY301
        if os.path.exists(path) and not os.path.isfile(path):  # noqa: PTH110, PTH113
            # A device or a pipe, such as /dev/stderr: written to, and never replaced by a file.
            with open(path, "w") as device:  # noqa: PTH123
                device.write(f"{json.dumps(snapshot.document())}\n")
            return
        path = os.path.realpath(path)  # a link stays a link
        folder = os.path.dirname(path)  # noqa: PTH120
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103
        with tempfile.NamedTemporaryFile("w", dir=folder, prefix=".mcore-autopatch-", delete=False) as file:
            scratch = file.name
            json.dump(snapshot.document(), file, indent=1)
        os.chmod(scratch, 0o644)  # noqa: PTH101
        os.replace(scratch, path)  # noqa: PTH105
    except Exception as error:
        reporting.warn(f"MCORE_AUTOPATCH_REPORT: cannot write {path}: {described(error)}")
        if scratch and os.path.exists(scratch):  # noqa: PTH110
            os.unlink(scratch)  # noqa: PTH108


class Summary:
    """What the reports of a folder say together.

    A patch that waits in one process and not in another is no difference: a checkpoint worker imports less than a
    trainer does.
    """

    def __init__(self, folder: Path) -> None:
        #: Every report that could be read.
        self.reports: list[dict[str, Any]] = []
        #: Path of a file that could not be read -> why.
        self.unreadable: dict[str, str] = {}
        for path in sorted(folder.rglob("*.json")):
            try:
                if not path.is_file():
                    raise ValueError("not a file")  # noqa: TRY301
                report = json.loads(path.read_bytes())
                if not isinstance(report, dict) or report["schema"] != snapshot.SCHEMA:
                    raise ValueError(f"not a report of schema {snapshot.SCHEMA}")  # noqa: TRY301
                _check(report)
                report["facts"] = dict(_facts(report))
                self.reports.append(report)
            except Exception as error:
                self.unreadable[str(path)] = described(error)
        #: Fact, such as "torch" or the id of a patch -> how many processes say what of it.
        self.counts: dict[str, Counter[str]] = defaultdict(Counter)
        for report in self.reports:
            for fact, value in report["facts"].items():
                self.counts[fact][value] += 1

    @property
    def ranks(self) -> set[int]:
        """Ranks that left a report."""
        return {report["rank"] for report in self.reports if report["rank"] is not None}

    @property
    def missing(self) -> list[int]:
        """Ranks that left none, as far as the others know how many there were."""
        world = max((report["world_size"] or 0 for report in self.reports), default=0)
        return sorted(set(range(world)) - self.ranks) if self.ranks else []

    def differing(self) -> Iterator[tuple[dict[str, Any], str, str, str]]:
        """Yield report, fact, value and the usual value wherever a process differs from most others."""
        for fact, counter in self.counts.items():
            if len(counter) > 1:
                # Where as many say the one as the other, it is a switch, or a patch not applied, that is remarkable.
                usual = max(counter, key=lambda value: (counter[value], value == "applied", "switched" not in value))
                for report in self.reports:
                    value = report["facts"].get(fact, usual)
                    if value != usual:
                        yield report, fact, value, usual

    @property
    def agrees(self) -> bool:
        """Tell whether every rank has reported, and all say the same."""
        return bool(self.reports) and not (self.unreadable or self.missing or any(True for _ in self.differing()))


_FACTS = ("mcore_autopatch", "megatron_core", "torch", "device", "python")


def _check(report: dict[str, Any]) -> None:
    """Raise an exception that says why, where a field that is used is missing or of another type."""
    texts = [report["host"], *map(report.__getitem__, _FACTS)]
    numbers = [report["pid"], report["rank"], report["world_size"]]
    switches, outcomes = report["switches"], report["outcomes"]
    if not isinstance(switches, dict) or not isinstance(outcomes, list):
        raise TypeError("switches must be an object and outcomes a list")
    texts += switches.values()
    for outcome in outcomes:
        if not isinstance(outcome, dict):
            raise TypeError("an outcome must be an object")
        if outcome["patch"] is None or outcome["status"] is None:
            raise ValueError("an outcome must name its patch and status")
        texts += [outcome["patch"], outcome["status"], outcome["reason"]]
    for value, kind in (*((text, str) for text in texts), *((number, int) for number in numbers)):
        if type(value) not in (kind, type(None)):
            raise TypeError(f"{value!r:.80} where {kind.__name__} is expected")
    if not all(number in range(snapshot.TOO_MANY) for number in numbers[1:] if number is not None):
        raise ValueError("rank or world_size is no number that a job can have")


def _facts(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for fact in _FACTS:
        if report[fact] is not None:
            yield fact, report[fact]
    for outcome in report["outcomes"]:
        if outcome["status"] != "waiting":
            yield outcome["patch"], outcome["status"] + (f" ({outcome['reason']})" if outcome["reason"] else "")
