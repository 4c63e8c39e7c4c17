"""What a start of Python costs, bare, with this package, and with others that hook it; each in a venv of its own."""

import resource
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests.environments import clean_environment, instructions, pip_install

#: Pythons to look for. Those that are not there are left out.
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
MODULES = "import sys; print(*sys.modules)"


@dataclass(frozen=True)
class Subject:
    """One thing whose start is measured."""

    #: How it hooks the start, in a line.
    how: str
    #: What to install; nothing where ``files`` are all there is.
    requirements: tuple[str, ...] = ()
    #: Name -> content of files to put into site-packages.
    files: dict[str, str] = field(default_factory=dict)
    #: Folder in site-packages to name in PYTHONPATH, as the command of this package does for the processes it starts.
    path: str = ""
    #: Environment variables of every run, and those that switch it off.
    variables: dict[str, str] = field(default_factory=dict)
    off: dict[str, str] = field(default_factory=dict)
    #: So much work that its instructions are counted on one Python only.
    heavy: bool = False


OURS = "mcore-autopatch"
EMPTY = "an empty .pth file"
BARE_FINDER = "a bare finder"
FINDER = """import sys
names = ("megatron.core",)
def find_spec(name, path=None, target=None):
    if name in names:
        from bare_finder_arming import find
        return find(name, path, target)
def init():
    sys.meta_path.insert(0, sys.modules[__name__])
"""
SUBJECTS = {
    EMPTY: Subject("the floor of any .pth file: Python reads it, twice in a venv", files={"a.pth": "\n"}),
    "one empty function": Subject(
        "the floor of any .pth file that imports one module and calls one function in it",
        files={"a.pth": "import one_function; one_function.init()\n", "one_function.py": "def init(): pass\n"},
    ),
    BARE_FINDER: Subject(
        "the floor of any finder: it knows one name, has no switch and guards against nothing",
        files={"a.pth": "import bare_finder; bare_finder.init()\n", "bare_finder.py": FINDER},
    ),
    OURS: Subject(
        "mcore_autopatch.pth imports one module, which puts itself into sys.meta_path; nothing where it is off",
        off={"MCORE_AUTOPATCH": "0"},
    ),
    "autowrapt": Subject(
        "autowrapt-init.pth imports a package; hooks are registered only if AUTOWRAPT_BOOTSTRAP names some",
        ("autowrapt",),
    ),
    "coverage": Subject(
        "a1_coverage.pth executes a string that imports coverage only if COVERAGE_PROCESS_START is set", ("coverage",)
    ),
    "setuptools": Subject(
        "distutils-precedence.pth imports _distutils_hack and puts its finder into sys.meta_path",
        ("setuptools",),
        off={"SETUPTOOLS_USE_DISTUTILS": "stdlib"},
    ),
    "ddtrace": Subject(
        "ddtrace-run puts a folder with a sitecustomize.py into PYTHONPATH, which patches; nothing otherwise",
        ("ddtrace",),
        path="ddtrace/bootstrap",
        variables={"DD_TRACE_STARTUP_LOGS": "false", "DD_INSTRUMENTATION_TELEMETRY_ENABLED": "false"},
        off={"DD_TRACE_ENABLED": "false"},
        heavy=True,
    ),
    "opentelemetry": Subject(
        "opentelemetry-instrument does the same with a sitecustomize.py of its own; nothing otherwise",
        ("opentelemetry-distro",),
        path="opentelemetry/instrumentation/auto_instrumentation",
        variables={f"OTEL_{kind}_EXPORTER": "none" for kind in ("TRACES", "METRICS", "LOGS")},
        off={"OTEL_SDK_DISABLED": "true"},
        heavy=True,
    ),
}


def find(version):
    """Return the interpreter of a version, by its name on PATH or among pyenv's, or None."""
    if version == "{}.{}".format(*sys.version_info):
        return Path(sys._base_executable)
    roots = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*"))
    found = [root / "bin" / f"python{version}" for root in roots] or filter(None, [shutil.which(f"python{version}")])
    return next(map(Path, found), None)


def _venv(python, folder, requirements):
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)
    interpreter = folder / "bin" / "python"
    if requirements:
        pip_install(interpreter, *requirements)
    return interpreter, next(folder.rglob("site-packages"))


def _seconds(interpreter, variables):
    """CPU seconds of one start."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([interpreter, "-c", "pass"], env=clean_environment(**variables), check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _loaded(interpreter, variables):
    done = subprocess.run(
        [interpreter, "-c", MODULES], env=clean_environment(**variables), check=True, capture_output=True, text=True
    )
    return set(done.stdout.split())


def _runs(subject, site):
    """Yield name, environment variables, and whether there are .pyc files, of each kind of run."""
    always = {**subject.variables, **({"PYTHONPATH": site / subject.path} if subject.path else {})}
    yield "idle", always, True
    if subject.off:
        yield "off", {**always, **subject.off}, True
    if not subject.heavy:
        yield "idle, no .pyc", {**always, "PYTHONDONTWRITEBYTECODE": 1}, False
        if subject.off:
            yield "off, no .pyc", {**always, **subject.off, "PYTHONDONTWRITEBYTECODE": 1}, False


def measure(pythons, folder, wheel, rounds, progress):
    """Return Python -> subject -> kind of run -> figures. Bare Python is the subject "bare"."""
    table = {}
    here = "{}.{}".format(*sys.version_info)
    for version in pythons:
        python = find(version)
        if python is None:
            progress(f"no Python {version} here")
            continue
        bare, _ = _venv(python, folder / f"{version}-bare", ())
        _seconds(bare, {})
        timed = {("bare", "idle"): (bare, {})}
        known = _loaded(bare, {})
        table[version] = {"bare": {"idle": {"instructions": instructions(bare, "-c", "pass")}}}
        for name, subject in SUBJECTS.items():
            progress(f"Python {version}: {name}")
            requirements = (wheel,) if name == OURS else subject.requirements
            interpreter, site = _venv(python, folder / f"{version}-{name.replace(' ', '-')}", requirements)
            for file, text in subject.files.items():
                (site / file).write_text(text)
            figures = table[version][name] = {}
            for run, variables, compiled in _runs(subject, site):
                if not compiled:
                    # The copy costs what the first one costs, but for the .pyc files.
                    interpreter = _without_pyc(python, folder / f"{version}-{name.replace(' ', '-')}-source", site)
                _seconds(interpreter, variables)
                added = sorted(_loaded(interpreter, variables) - known)
                figures[run] = {"modules": len(added)}
                if len(added) < 5:
                    figures[run]["names"] = added
                if not subject.heavy or version == here:
                    figures[run]["instructions"] = instructions(interpreter, "-c", "pass", **variables)
                timed[name, run] = interpreter, variables
        # In turns, so that whatever else the machine does strikes all alike. The least is what the work itself takes.
        best = dict.fromkeys(timed, float("inf"))
        for _ in range(rounds):
            for key, (interpreter, variables) in timed.items():
                best[key] = min(best[key], _seconds(interpreter, variables))
        for (name, run), seconds in best.items():
            table[version][name][run]["cpu_ms"] = round(seconds * 1e3, 2)
    return table


def _without_pyc(python, folder, site):
    interpreter = folder / "bin" / "python"
    if not folder.exists():
        interpreter, other = _venv(python, folder, ())
        shutil.copytree(site, other, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    return interpreter
