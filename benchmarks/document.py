"""Writes docs/benchmarks.md and docs/benchmarks.svg from the results."""

import itertools

import matplotlib as mpl
from matplotlib import pyplot as plt

from benchmarks.start_up import BARE_FINDER, EMPTY, OURS, SUBJECTS

#: Targets: kind of run -> share of a bare start, before Python 3.13 and from then on.
START = {"idle": (0.04, 0.06), "off": (0.025, 0.025)}
COMPILING = 12e6
#: Why a target is missed. Nothing is said of those that are met.
COUNTED = (
    "the count has to be corrected on the device: one comparison and one fill. Asking in Python whether it is zero "
    "would wait for the device"
)
BINDING = "{:.0f} ns are a Python closure, which packs and unpacks the keywords once more; the rest decides"


def write(results, folder):
    """Write what there is results for."""
    parts = [_HEAD, _versions(results.get("versions", {}))]
    if start := results.get("start"):
        parts += [_start(start), _peers(start)]
        _plot(start, folder / "benchmarks.svg")
    if imports := results.get("imports"):
        parts.append(_imports(imports))
    if calls := results.get("calls"):
        parts.append(_calls(calls))
    if megatron := results.get("megatron"):
        parts.append(_megatron(megatron))
    (folder / "benchmarks.md").write_text("\n\n".join(filter(None, parts)) + "\n")


_HEAD = """\
# Benchmarks

This page and its plot are generated: `python -m nox -s benchmarks` measures again and writes them, and
`benchmarks/results.json`. What is compared in a table was measured in one run, in turns.

Instructions are counted by valgrind (callgrind). They repeat to 0.1 % on any machine, except that a collection of
garbage, 0.6 % of a start, falls into a run or does not. Times are the least of many short runs and differ
between machines."""


def _versions(versions):
    return "Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()) + "." if versions else ""


def _table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _verdict(met, floor):
    return "met" if met else f"missed: {floor}"


def _share(python, subject, run="idle"):
    """Instructions beyond a bare start, as a share of it."""
    counted = python.get(subject, {}).get(run, {}).get("instructions")
    base = python["bare"]["idle"]["instructions"]
    return None if not counted or not base else counted / base - 1


def _percent(share):
    return "" if share is None else f"{share:.2%}".replace("%", " %")


def _newer(version):
    return tuple(map(int, version.split("."))) >= (3, 13)


def _start(start):
    rows = []
    for version, python in start.items():
        for run, targets in START.items():
            share, floor = _share(python, OURS, run), _share(python, EMPTY)
            if share is None:
                continue
            target = targets[_newer(version)]
            text = f"any .pth file takes {_percent(floor)}"
            rows.append(
                [version, run, f"≤ {target:.1%}".replace("%", " %"), _percent(share), _verdict(share <= target, text)]
            )
        counted, base = python[OURS]["idle, no .pyc"].get("instructions"), python["bare"]["idle"]["instructions"]
        if counted:
            floor = (python[BARE_FINDER]["idle, no .pyc"]["instructions"] - base) / 1e6
            more = counted - base
            text = f"a finder of eight lines that guards against nothing takes {floor:.1f} M"
            rows.append([version, "idle, no .pyc", "≤ 12 M", f"{more / 1e6:.1f} M", _verdict(more <= COMPILING, text)])
        modules = python[OURS]["idle"]["modules"] - python[EMPTY]["idle"]["modules"]
        rows.append([version, "modules", "≤ 2", modules, _verdict(modules <= 2, "")])
    return (
        "## What a start costs\n\nInstructions beyond a bare interpreter in a virtual environment, `python -c pass`. "
        "*off* is `MCORE_AUTOPATCH=0`; *no .pyc* is PYTHONDONTWRITEBYTECODE=1 without compiled files."
        "\nPython 3.13 imports a codec for the first .pth file, whatever is in it.\n\n"
        + _table(["Python", "run", "target", "result", ""], rows)
    )


def _peers(start):
    names = ["bare", *SUBJECTS]
    rows = []
    for name, run in itertools.product(names, ("idle", "off", "idle, no .pyc", "off, no .pyc")):
        if not any(run in python.get(name, {}) for python in start.values()):
            continue
        cells = []
        for python in start.values():
            figures = python.get(name, {}).get(run, {})
            share = _share(python, name, run) if name != "bare" else None
            counted = figures.get("instructions") if name == "bare" else None
            milliseconds = f"({figures['cpu_ms']:.1f} ms)" if "cpu_ms" in figures else ""
            cells.append(f"{f'{counted / 1e6:.1f} M' if counted else _percent(share)} {milliseconds}".strip())
        added = next(python[name][run].get("modules", 0) for python in start.values() if run in python.get(name, {}))
        rows.append([name, run, *cells, added])
    how = [[name, subject.how] for name, subject in SUBJECTS.items()]
    return (
        "![Instructions of a start beyond bare Python](benchmarks.svg)\n\n"
        "## Beside others\n\nEach in a virtual environment of its own. Instructions beyond bare Python, CPU time of a "
        "start in brackets, and modules added on the first Python.\n\n"
        + _table(["", "run", *start, "modules"], rows)
        + "\n\n"
        + _table(["", "how it hooks the start"], how)
    )


def _imports(imports):
    miss, hooked, arming = imports["miss"], imports["hooked"], imports["arming"]
    more, wrapt = (hooked[which] - hooked["plain_us"] for which in ("hooked_us", "wrapt_us"))
    rows = [
        [
            "a look-up that is none of ours, called directly",
            "≤ 60 ns",
            f"{miss['direct_ns']:.0f} ns",
            _verdict(miss["direct_ns"] <= 60, f"an empty function takes {miss['empty_function_ns']:.0f} ns"),
        ],
        [
            "the same in importlib's loop",
            "≤ 450 ns",
            f"{miss['loop_ns']:.0f} ns",
            _verdict(miss["loop_ns"] <= 450, f"an empty finder takes {miss['loop_empty_ns']:.0f} ns"),
        ],
        [
            "importing a target, beyond its patches",
            "≤ 5 µs",
            f"{more:.1f} µs",
            _verdict(more <= 5, f"an empty hook of wrapt alone takes {wrapt:.1f} µs"),
        ],
        [
            f"arming, once, at the first import of megatron.core ({arming['modules']} modules)",
            "",
            f"{arming['ms']:.0f} ms",
            "",
        ],
    ]
    return (
        "## What an import costs\n\n"
        "To compare machines by: the call of an empty function took "
        f"{miss['empty_function_ns']:.0f} ns on this one.\n\n" + _table(["", "target", "result", ""], rows)
    )


def _calls(calls):
    rows = []
    for patch, told in calls.items():
        more = told["replacement_ns"] - told["direct_ns"]
        floor = told["closure_ns"] - told["direct_ns"]
        why = COUNTED if patch == "mtp-empty-loss-mask" else BINDING.format(floor)
        rows.append([f"`{patch}`", f"`{told['attribute']}`", f"{floor:.0f}", f"{more:.0f}", _verdict(more <= 300, why)])
    return (
        "## What a call costs\n\nNanoseconds beyond a direct call of the same function, where nothing is changed; "
        "the target is 300. The function itself does nothing here; in megatron-core it takes from tens of "
        "microseconds to seconds. Patches that replace no function, or one called once a process, are left out; so is "
        "`common-state-numpy`, which is off and is called once per load. What torch.cuda.is_available() takes, which "
        "`preload-without-cuda` asks once per save, is not in it.\n\n"
        + _table(["patch", "function", "closure alone", "replacement", ""], rows)
    )


def _megatron(megatron):
    rows = []
    for version, speeds in megatron["save_mb_per_s"].items():
        bug = "the bug worked around by hand" if version.startswith("0.12") else "no bug there"
        ratio = speeds["with"] / speeds["without"]
        rows.append(
            [
                f"saving 128 MB with megatron-core {version}, against {bug}",
                "1.00 ± noise",
                f"{ratio:.2f} ({speeds['with']:.0f} and {speeds['without']:.0f} MB/s)",
            ]
        )
    ours, theirs = megatron["evaluate_ms"].values()
    rows.append(
        [
            "evaluating without labels with 0.16.1 and `mtp-inference`, against 0.17.1, which runs the MTP layers",
            "≤ 1.00 of the time",
            f"{ours / theirs:.2f} ({ours:.1f} and {theirs:.1f} ms)",
        ]
    )
    return "## What megatron-core does with it\n\nOn a CPU.\n\n" + _table(["", "target", "result"], rows)


def _plot(start, path):
    """Draw one group of bars per subject; a colour and a hatch for each Python."""
    # Grey text and no background: readable on white and on black. The colours are Okabe and Ito's.
    grey = "#808080"
    style = dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), grey)
    colours, hatches = ["#0072B2", "#E69F00", "#009E73", "#CC79A7"], ["", "//", "..", "xx"]
    names = [name for name in SUBJECTS if all(_share(python, name) is not None for python in start.values())]
    with mpl.rc_context({**style, "svg.hashsalt": "mcore-autopatch", "svg.fonttype": "none", "font.size": 10}):
        figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
        height = 0.8 / len(start)
        for number, (version, python) in enumerate(start.items()):
            places = [place + number * height for place in range(len(names))]
            shares = [100 * _share(python, name) for name in names]
            axes.barh(
                places,
                shares,
                height,
                label=f"Python {version}",
                color=colours[number % 4],
                hatch=hatches[number % 4],
                edgecolor=grey,
                linewidth=0.5,
            )
        axes.set_yticks([place + 0.4 - height / 2 for place in range(len(names))], names)
        axes.invert_yaxis()
        axes.set_xlabel("instructions of a start beyond bare Python, in %")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        figure.savefig(path, transparent=True, metadata={"Date": None})
        plt.close(figure)
