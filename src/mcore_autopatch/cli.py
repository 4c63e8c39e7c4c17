"""The command line: what is patched here, why or why not, and can I believe it."""

import argparse
import dataclasses
import importlib.metadata
import io
import json
import os
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import mcore_autopatch
from mcore_autopatch import _startup, catalogue, doctor, fresh, snapshot
from mcore_autopatch.declaration import Patch
from mcore_autopatch.errors import PatchDefinitionError, UnknownPatchError
from mcore_autopatch.foreign import described, printable
from mcore_autopatch.matching import Combination, match
from mcore_autopatch.switches import Switches

EXAMPLES = """
examples:
  mcore-autopatch                      what is patched here, and why (status)
  mcore-autopatch explain mtp-inference
  mcore-autopatch verify               reproduce each bug, without and with us
  mcore-autopatch doctor               why is nothing patched?
  mcore-autopatch doctor verl          the same after importing verl
  mcore-autopatch summarize REPORTS    does every rank say the same?
"""

_COLOURS = {"green": "32", "red": "31", "yellow": "33", "bold": "1"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Return 0, 1 for something that needs attention, or 2 for an error, told on stderr."""
    options = _parser().parse_args(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a name of the user's may be none that the locale can write
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("mcore-autopatch: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        print(f"mcore-autopatch: error: {error}", file=sys.stderr)
        return 2
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mcore-autopatch",
        description="Fixes for megatron-core that apply themselves. Without a command: status.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"mcore-autopatch {mcore_autopatch.__version__}")
    parser.set_defaults(run=_status, json=False, static=False)
    parser.add_argument("--static", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help=argparse.SUPPRESS)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        sub.set_defaults(run=run)
        return sub

    command("list", _list, "list all patches; imports neither torch nor megatron-core")
    status = command("status", _status, "tell whether the hook is active here and what became of each patch")
    status.add_argument(
        "--static",
        action="store_true",
        default=argparse.SUPPRESS,
        help="forecast from metadata alone, without importing torch",
    )
    explain = command("explain", _explain, "explain one patch: symptom, cause, fix, sources")
    explain.add_argument("id")
    verify = command("verify", _verify, "reproduce bugs on this machine's packages, without and with the patches")
    verify.add_argument("id", nargs="*", help="patches to verify (default: all)")
    verify.add_argument("--all", action="store_true", help="run also what status says is not affected here")
    diagnose = command("doctor", _doctor, "find whatever disables or weakens the patches here")
    diagnose.add_argument("module", nargs="*", help="modules to import first, as your training program does")
    summary = command("summarize", _summarize, "compare the reports that MCORE_AUTOPATCH_REPORT left in a folder")
    summary.add_argument("folder", type=Path)
    for sub in (status, verify, diagnose, summary):
        sub.add_argument(
            "--json",
            action="store_true",
            default=argparse.SUPPRESS,
            help="machine-readable output; see docs/report-format.md",
        )
    return parser


def _list(_options: argparse.Namespace) -> int:
    switches = Switches.read()
    for patch in catalogue.load().patches.values():
        off = switches.leaves_out(patch)
        state = f"off ({off})" if off else "on"
        _say(_paint("bold", patch.id), indent=0)
        _say(patch.title)
        _rows([("affected", _affected(patch)), ("fixed in", patch.fixed_in or "no release yet")])
        _rows(
            [("upstream", patch.upstream), ("switch", "off (MCORE_AUTOPATCH=0)" if _startup.switched_off() else state)]
        )
    return 0


def _status(options: argparse.Namespace) -> int:
    told = _forecast() if options.static else _look()
    if options.json:
        print(json.dumps(told, indent=1))
        return 0
    _rows([("hook", _hook(told))], indent=0)
    for name in ("megatron_core", "torch"):
        stated = told["installed"][name]
        differs = f" (installed: {stated})" if stated and told[name] and not told[name].startswith(stated) else ""
        missing = "not installed" if options.static else "not loaded"
        _rows([(name.replace("_", "-"), f"{told[name] or missing}{differs}")], indent=0)
    _rows([("device", told["device"] or ("not asked" if options.static else "unknown: torch is not loaded"))], indent=0)
    if options.static:
        _say("A forecast from package metadata: the loaded code has the last word.", indent=0)
    elif not told["hook"] and told["outcomes"]:
        hint = "without the switch" if _startup.switched_off() else "after mcore_autopatch.install()"
        _say(f"No patch is applied. This is what would happen {hint}:", indent=0)
    for outcome in told["outcomes"]:
        colour = {"applied": "green", "failed": "red"}.get(outcome["status"], "yellow")
        reason = f" ({outcome['reason']})" if outcome["reason"] else ""
        origin = "" if outcome["origin"] == "mcore-autopatch" else f" [from {outcome['origin']}]"
        status = outcome["status"]
        if status == "applied" and not told["hook"]:
            status, colour = "would be applied", "yellow"
        print(f"\n{_paint('bold', outcome['patch'])}: {_paint(colour, status)}{reason}{origin}")
        _say(outcome["detail"])
    if not options.static and _no_megatron(told):
        _say("There is no megatron-core in this environment, and so nothing to patch.", indent=0)
    else:
        for module, problem in told["problems"].items():
            print()
            _say(f"{module} cannot be imported: {problem}", indent=0)
    return 0


def _no_megatron(told: dict[str, Any]) -> bool:
    """Tell whether the targets cannot be imported because there is no megatron-core at all."""
    problems = told["problems"].values()
    return any(problem.startswith("ModuleNotFoundError: No module named 'megatron") for problem in problems) and not (
        told["megatron_core"] or told["installed"]["megatron_core"]
    )


def _hook(told: dict[str, Any]) -> str:
    if told["hook"]:
        return _paint("green", "active")
    finding = told["findings"][0]
    return f"{_paint('red', 'not active')}: {finding['what']}. To do: {finding['remedy']}."


def _look(modules: Sequence[str] = ()) -> dict[str, Any]:
    with _progress() as progress:
        progress("importing megatron-core in a fresh interpreter")
        told = {**fresh.look(modules, MCORE_AUTOPATCH="1"), "installed": _installed()}
    if _startup.switched_off():
        # What would happen without the switch is what the user wants to know.
        told["hook"] = False
        told["findings"].insert(0, dataclasses.asdict(doctor.inactive()))
    return told


def _installed() -> dict[str, str | None]:
    versions: dict[str, str | None] = {}
    for name in ("megatron-core", "torch"):
        try:
            versions[name.replace("-", "_")] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name.replace("-", "_")] = None
    return versions


def _forecast() -> dict[str, Any]:
    """Say what is likely to become of each patch, from metadata alone."""
    found, switches, stated = catalogue.load(), Switches.read(), _installed()
    here = Combination(megatron_core=stated["megatron_core"], torch=stated["torch"], device=None)
    outcomes = []
    for patch in found.patches.values():
        row, reason, detail = match(patch, here)
        status, why = ("skipped", reason.value) if reason else ("expected", None)
        if off := switches.leaves_out(patch):
            status, why, detail = "skipped", "switched off", off
        elif row:
            detail = f"affected: {row}"
        outcomes.append({"patch": patch.id, "status": status, "reason": why, "detail": detail, "origin": patch.origin})
    active = _startup.registered()
    findings = [] if active else [dataclasses.asdict(doctor.inactive())]
    told = {"schema": snapshot.SCHEMA, "forecast": True, "mcore_autopatch": mcore_autopatch.__version__, "hook": active}
    told |= {**stated, "installed": stated, "device": None, "problems": {}, "findings": findings}
    return {**told, "outcomes": [] if stated["megatron_core"] is None else outcomes}


def _explain(options: argparse.Namespace) -> int:
    patch = _known([options.id])[0]
    print(_paint("bold", f"{patch.id}: {patch.title}"))
    switch = f"MCORE_AUTOPATCH_DISABLE={patch.id}"
    if patch.opt_in:
        switch = f"Off unless MCORE_AUTOPATCH_ENABLE={patch.id}. {patch.opt_in}"
    replaced = [f"{patch.target}.{path}" for path in (*patch.replacements, *patch.additions)]
    acts = replaced or [f"the execution of {patch.target}"]
    print("\nSymptom")
    _say(patch.symptom)
    for error in patch.errors:
        print(f"    {error}")  # in one line, however long: it is compared and searched for
    for title, lines in [
        ("Cause", [patch.cause]),
        ("Affected", [str(row) for row in patch.affected]),
        ("Fixed upstream in", [patch.fixed_in or "no release yet", patch.upstream]),
        ("What is replaced", acts),
        ("Effect", [patch.effect]),
        ("To switch it off" if not patch.opt_in else "To switch it on", [switch]),
    ]:
        print(f"\n{title}")
        for line in lines:
            _say(line)
    return 0


def _verify(options: argparse.Namespace) -> int:
    from mcore_autopatch import verify

    patches = _known(options.id) if options.id else list(catalogue.load().patches.values())
    with _progress() as progress:
        progress("importing megatron-core in a fresh interpreter")
        everything = {"MCORE_AUTOPATCH": "1", "MCORE_AUTOPATCH_ENABLE": ",".join(patch.id for patch in patches)}
        told = fresh.look(**everything, MCORE_AUTOPATCH_ONLY="", MCORE_AUTOPATCH_DISABLE="")
    expected = {outcome["patch"]: outcome for outcome in told["outcomes"]}
    verdicts = []
    for patch in patches:
        outcome = expected.get(patch.id, {"status": "waiting", "detail": "megatron-core cannot be imported"})
        if outcome["status"] in ("applied", "failed") or options.all:
            with _progress() as progress:
                found = list(verify.verify(patch.id, outcome["status"], progress))
        else:
            found = [verify.absent(patch.id, outcome["detail"])]
        verdicts += found
        for verdict in () if options.json else found:
            colour = "red" if verdict.bad else "green" if verdict.verdict == "fixed" else "yellow"
            case = f", {verdict.case}" if verdict.case else ""
            print(f"{_paint('bold', patch.id)}{case}: {_paint(colour, verdict.verdict)}")
            if verdict.without:
                _rows([("without", verdict.without), ("with", verdict.with_patch)])
            else:
                _say(verdict.with_patch)
    if options.json:
        print(json.dumps([dataclasses.asdict(verdict) for verdict in verdicts], indent=1))
    else:
        print(", ".join(f"{count} {verdict}" for verdict, count in Counter(v.verdict for v in verdicts).items()))
    if any(verdict.bad for verdict in verdicts):
        print("A patch that should help does not. mcore-autopatch doctor may know why.", file=sys.stderr)
        return 1
    return 0


def _doctor(options: argparse.Namespace) -> int:
    told = _look(options.module)
    for module, problem in () if _no_megatron(told) else told["problems"].items():
        why = "patches cannot be applied to what cannot be imported"
        remedy = f'run python -c "import {module}" and mend that'
        told["findings"].append({"what": f"{module} cannot be imported: {problem}", "why": why, "remedy": remedy})
    if options.json:
        print(json.dumps(told, indent=1))
    else:
        for number, finding in enumerate(told["findings"], 1):
            _say(f"{number}. {finding['what']}", indent=0)
            _rows([("why it matters", finding["why"]), ("what to do", finding["remedy"])])
        count = len(told["findings"])
        print(f"{count} finding{'s' if count > 1 else ''}" if count else _paint("green", "nothing found: all is well"))
    return 1 if told["findings"] else 0


def _summarize(options: argparse.Namespace) -> int:
    from mcore_autopatch import fleet

    if not options.folder.is_dir():
        raise NotADirectoryError(f"{options.folder} is not a folder")
    summary = fleet.Summary(options.folder)
    if options.json:
        counts = {fact: dict(counter) for fact, counter in summary.counts.items()}
        differing = [
            {key: report[key] for key in ("rank", "host", "pid", "switches")}
            | {"fact": fact, "value": value, "usual": usual}
            for report, fact, value, usual in summary.differing()
        ]
        told = {
            "schema": snapshot.SCHEMA,
            "reports": len(summary.reports),
            "ranks": len(summary.ranks),
            "facts": counts,
        }
        told |= {"differing": differing, "missing_ranks": summary.missing, "unreadable": summary.unreadable}
        print(json.dumps({**told, "agrees": summary.agrees}, indent=1))
        return 0 if summary.agrees else 1
    hosts = {report["host"] for report in summary.reports}
    places = f"{len(hosts):,} host{'' if len(hosts) == 1 else 's'}"
    print(f"{len(summary.reports):,} reports of {len(summary.ranks):,} ranks on {places}")
    rows = []
    for fact, counter in summary.counts.items():
        values = "; ".join(
            f"{value} ({count:,})" if len(counter) > 1 else value for value, count in counter.most_common()
        )
        rows.append((printable(fact.replace("_", "-")), printable(values)))
    _rows(rows)
    shared = set.intersection(*(set(report["switches"].items()) for report in summary.reports or [{"switches": {}}]))
    remarks: Counter[str] = Counter()
    for report, fact, value, usual in summary.differing():
        rank = "a process of no rank" if report["rank"] is None else f"rank {report['rank']}"
        names = "".join(f"; {name}={text}" for name, text in report["switches"].items() if (name, text) not in shared)
        remarks[f"{rank} on {report['host']}: {fact} is {value}, not {usual}{names}"] += 1
    for text, count in list(remarks.items())[:50]:
        _say(_paint("red", f"{printable(text)} ({count} process{'es' if count > 1 else ''})"), indent=0)
    if summary.missing:
        shown = ", ".join(map(str, summary.missing[:20])) + (" …" if len(summary.missing) > 20 else "")  # noqa: PLR2004
        ranks = f"{len(summary.missing):,} rank{'s' if len(summary.missing) > 1 else ''}"
        _say(_paint("red", f"no report from {ranks}: {shown}"), indent=0)
    for path, problem in list(summary.unreadable.items())[:20]:
        _say(_paint("red", f"{printable(path)} cannot be read: {problem}"), indent=0)
    print(
        _paint("green", "all agree")
        if summary.agrees
        else _paint("red", "they do not agree" if hosts else "no reports: was MCORE_AUTOPATCH_REPORT set?")
    )
    return 0 if summary.agrees else 1


def _known(ids: Iterable[str]) -> list[Patch]:
    found = catalogue.load()
    for patch_id in ids:
        for broken in found.broken:
            if broken.id == patch_id:
                raise PatchDefinitionError(f"{patch_id} from {broken.origin}", described(broken.error))
        if patch_id not in found.patches:
            raise UnknownPatchError(patch_id, found.nearest(patch_id), list(found.patches))
    return [found.patches[patch_id] for patch_id in ids]


def _affected(patch: Patch) -> str:
    return "; ".join(str(row) for row in patch.affected)


class _progress:  # noqa: N801
    """Shows one line on a terminal while something runs, and takes it away again."""

    def __enter__(self) -> Callable[[str], None]:
        self._shown = sys.stderr.isatty()
        return self._show

    def __exit__(self, *_: object) -> None:
        self._show("")

    def _show(self, text: str) -> None:
        if self._shown:
            sys.stderr.write(f"\r\033[K{text}")
            sys.stderr.flush()


def _paint(colour: str, text: str) -> str:
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\033[{_COLOURS[colour]}m{text}\033[0m"


def _width() -> int:
    return max(40, min(100, shutil.get_terminal_size((80, 24)).columns))


def _say(text: str, *, indent: int = 2) -> None:
    pad = " " * indent
    options: dict[str, Any] = {"width": _width(), "break_long_words": False, "break_on_hyphens": False}
    print(textwrap.fill(text, initial_indent=pad, subsequent_indent=pad + ("" if indent else "  "), **options))


def _rows(rows: Iterable[tuple[str, str]], *, indent: int = 2) -> None:
    """Print names and values in two columns."""
    rows = list(rows)
    column = max(15, *(len(name) + 1 for name, _ in rows)) if rows else 15
    for name, value in rows:
        label = f"{' ' * indent}{f'{name}:':<{column}} "
        options: dict[str, Any] = {"width": _width(), "break_long_words": False, "break_on_hyphens": False}
        print(textwrap.fill(value, initial_indent=label, subsequent_indent=" " * len(label), **options))
