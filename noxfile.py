"""Sessions; `python -m nox --list` names them and `python -m nox -s NAME` runs one. Each sets up all it needs."""

import os
import re
import shutil
from pathlib import Path

import nox

nox.options.sessions = ["lint", "tests"]
nox.options.default_venv_backend = "virtualenv"

#: The torch that tests run with unless a session says otherwise.
TORCH = "torch==2.13.0"
#: The oldest dependencies that work, as pyproject.toml states them. wrapt before 1.14 does not import on Python 3.11.
FLOORS = ("wrapt==1.14.0", "packaging==20.9")
#: What megatron-core imports without declaring it.
UNDECLARED = ("numpy", "psutil")
#: What megatron-core 0.18 and 0.19 import as well; a CPU build of torch comes without it.
TRITON = "triton==3.6.0; sys_platform == 'linux'"


#: Releases of megatron-core and the environments that they are tested in.
RELEASES = nox.project.load_toml("tests/releases.toml")


def install_wheel(session, extra=""):
    """Build the wheel and install it, as users get it."""
    dist = session.create_tmp()
    session.run("python", "-m", "pip", "wheel", "-q", "--no-deps", "-w", dist, ".", silent=True)
    newest = max(Path(dist).glob("*.whl"), key=lambda path: path.stat().st_mtime)
    session.install("--force-reinstall", "--no-deps", newest)
    session.install(f"{newest}{extra}")


@nox.session
def demo(session):
    """Run one program on megatron-core 0.12.1 without this package, then with it."""
    session.install(TORCH, *UNDECLARED)
    session.install("--no-deps", "megatron-core==0.12.1")
    install_wheel(session)
    program = ("python", "-W", "ignore", "examples/save_and_load.py")
    session.log("Without mcore-autopatch (MCORE_AUTOPATCH=0), the save fails:")
    session.run(*program, env={"MCORE_AUTOPATCH": "0"}, success_codes=[1])
    session.log("With mcore-autopatch, the same program, not a line changed:")
    session.run(*program, env={"MCORE_AUTOPATCH_VERBOSE": "1"})


@nox.session
def tests(session):
    """Run the tests over the built wheel, with real torch and real megatron-core releases."""
    session.install(TORCH, *UNDECLARED, TRITON)
    install_wheel(session, "[test]")
    # Most of the time goes into importing torch and megatron-core in fresh interpreters.
    session.run("python", "-m", "pytest", "-n", str(min(4, os.cpu_count() or 1)), *session.posargs)


@nox.session
@nox.parametrize("torch", ["2.8.0", "2.9.0"])
def seed(session, torch):
    """Checkpoint round trips of megatron-core 0.12.1 with the very torch releases of verl#6322."""
    session.install(f"torch=={torch}", *UNDECLARED)
    install_wheel(session, "[test]")
    session.run(
        "python", "-m", "pytest", "tests/patches/test_serialization_format.py", "-k", "0.12.1", *session.posargs
    )


@nox.session
def ascend(session):
    """Run the real torch_npu on a stub of the NPU driver, whatever is imported first. Takes gcc, nm and ldd; no NPU."""
    session.install(TORCH, *UNDECLARED, TRITON)
    install_wheel(session, "[test]")
    # Where torch_npu cannot run, CI turns the skip into a failure.
    variables = {"TEST_ASCEND": "1", "CI": "true"}
    tests = session.posargs or ["tests/ascend/test_import_orders.py"]
    session.run("python", "-m", "pytest", "-n", str(min(4, os.cpu_count() or 1)), *tests, env=variables)


@nox.session(python="3.12")
def newer(session):
    """The newest megatron-core releases on the Python that they ask for, with another torch."""
    session.install("torch==2.10.0", *UNDECLARED)
    install_wheel(session, "[test]")
    tests = session.posargs or ["tests/test_contracts.py", "tests/patches", "-k", "contracts or 0.18 or 0.19"]
    session.run("python", "-m", "pytest", "-n", str(min(4, os.cpu_count() or 1)), *tests)


@nox.session
@nox.parametrize("python,environment", [(told["python"], name) for name, told in RELEASES["environments"].items()])
def matrix(session, environment):
    """Run every reproduction on every release in every environment, without us and with us: docs/matrix.json and .svg.

    It takes an hour and more, and goes on where it was stopped. Arguments go to tests/matrix/run.py.
    """
    session.install(*RELEASES["environments"][environment]["requirements"], *UNDECLARED, TRITON, "matplotlib>=3.9")
    install_wheel(session)
    tests = {"PYTHONPATH": "tests"}
    session.run("python", "-m", "matrix.run", environment, *session.posargs, env=tests)
    session.run("python", "-m", "matrix.draw", env=tests)


@nox.session
def no_harm(session):
    """Run programs on every release without us and with us, and compare all that can be seen of them, bit for bit."""
    session.install(TORCH, *UNDECLARED, TRITON)
    install_wheel(session, "[test]")
    session.run("python", "-m", "pytest", "tests/no_harm", "-n", str(min(4, os.cpu_count() or 1)), *session.posargs)


@nox.session
def matrix_boundaries(session):
    """Run the cells where a bug begins or ends, with one torch, and compare them with docs/matrix.json."""
    session.install(TORCH, *UNDECLARED, TRITON)
    install_wheel(session)
    session.run("python", "-m", "matrix.run", "torch-2.13.0", "--boundaries", env={"PYTHONPATH": "tests"})


@nox.session
def fuzz(session):
    """Look for inputs that break something, ten minutes or as many seconds as given: `nox -s fuzz -- 3600`."""
    install_wheel(session, "[test]")
    (seconds,) = session.posargs or ["600"]
    session.run("python", "-m", "pytest", "tests/fuzz", "-p", "no:xdist", env={"FUZZ_SECONDS": seconds})


@nox.session
def guards(session):
    """Take the guards against hostile surroundings away, one at a time: a test has to fail without each."""
    copy = Path(session.create_tmp(), "copy").resolve()
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(".", copy, ignore=shutil.ignore_patterns(".git", ".nox", ".cache", "__pycache__"))
    Path(".cache").mkdir(exist_ok=True)
    (copy / ".cache").symlink_to(Path(".cache").resolve())
    session.install(TORCH, *UNDECLARED, TRITON)
    session.install("-e", f"{copy}[test]")
    session.chdir(copy)
    session.run("python", "-m", "hostile.remove_guards", *session.posargs, env={"PYTHONPATH": "tests"})


@nox.session
def launchers(session):
    """Start processes through Ray, Jupyter, uv and pex, each installed into an environment of its own."""
    install_wheel(session, "[test]")
    session.run("python", "-m", "pytest", "tests/launchers", "-m", "launcher", *session.posargs)


@nox.session
def benchmarks(session):
    """Measure what a start, an import and a call cost, beside others, and write docs/benchmarks.md."""
    session.install(TORCH, *UNDECLARED, "matplotlib>=3.9")
    install_wheel(session)
    session.run("python", "-m", "benchmarks", *session.posargs)


@nox.session(venv_backend="none")
def new_releases(session):
    """Name the releases of megatron-core on the package index that tests/releases.toml does not know."""
    # Later releases ask for newer Pythons.
    told = session.run(
        "python", "-m", "pip", "index", "versions", "megatron-core", "--python-version=3.14", silent=True, stderr=None
    )
    (line,) = re.findall(r"^Available versions: (.*)$", told, re.MULTILINE)
    first, *_ = RELEASES["releases"]
    # From the newest on, and the file begins with the oldest that is tested.
    newest = line.split(", ")
    unknown = [release for release in newest[: newest.index(first)] if release not in RELEASES["releases"]]
    if unknown:
        session.error(f"not in tests/releases.toml: {', '.join(unknown)}")


@nox.session(venv_backend="none")
def new_patch(session):
    """Write the three files of a new patch: `nox -s new_patch -- my-patch-id`."""
    if len(session.posargs) != 1 or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", session.posargs[0]):
        session.error("give one id, lower-case words joined by hyphens: nox -s new_patch -- my-patch-id")
    (patch_id,) = session.posargs
    name = patch_id.replace("-", "_")
    files = {
        "patch": Path("src/mcore_autopatch/patches", f"{name}.py"),
        "reproduction": Path("src/mcore_autopatch/reproductions", f"{name}.py"),
        "test": Path("tests/patches", f"test_{name}.py"),
    }
    if present := [str(path) for path in files.values() if path.exists()]:
        session.error(f"there already: {', '.join(present)}")
    for template, path in files.items():
        path.write_text(Path("templates", f"{template}.py.txt").read_text().replace("@ID@", patch_id))
        session.log(f"wrote {path}")
    session.log("Replace every TODO in them; CONTRIBUTING.md explains.")


@nox.session
def floors(session):
    """Run the engine's tests with the oldest wrapt and packaging that pyproject.toml accepts."""
    overlay = session.create_tmp()
    install_wheel(session, "[test]")
    session.run("python", "-m", "pip", "install", "-q", "--upgrade", "--target", overlay, "--no-deps", *FLOORS)
    session.run("python", "-m", "pytest", "tests/test_engine.py", *session.posargs, env={"TEST_OVERLAY": overlay})


@nox.session
def lint(session):
    """Check style and types."""
    session.install("ruff>=0.15", "mypy>=1.11", "numpy", "packaging", "typing_extensions", "wrapt")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("mypy")
