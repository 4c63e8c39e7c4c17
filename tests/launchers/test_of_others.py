"""Launchers that are installed for these tests, each into an environment of its own: `nox -s launchers`."""

import subprocess
import sys

import pytest
from environments import clean_environment

pytestmark = pytest.mark.launcher


@pytest.fixture
def launch_in(launch, environment, tmp_path):
    """Return ``launch`` for another environment, which has no torch: a module with a version stands for it."""
    (tmp_path / "torch.py").write_text("__version__ = '2.13.0+cpu'\n")
    return launch


def test_ray_tasks_and_actors(launch_in, patched_in, make_venv, wheel):
    code = """
import os, program, ray
@ray.remote
def task(): return program.tell()
@ray.remote
class Actor:
    def tell(self): return program.tell()
if __name__ == "__main__":
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False)
    actors = [Actor.remote() for _ in range(2)]
    for told in ray.get([task.remote()] + [actor.tell.remote() for actor in actors]):
        assert told[0] != os.getpid()
        print(told)
    import sys
    assert "mcore_autopatch.engine" not in sys.modules
    ray.shutdown()
"""
    executable = make_venv(wheel, "ray")
    told = launch_in("main.py", program=code, executable=executable, RAY_USAGE_STATS_ENABLED="0")
    patched_in(told, len({pid for pid, *_ in told}))
    assert len(told) == 3


def test_a_jupyter_kernel(launch_in, patched_in, make_venv, wheel):
    code = """
import os, jupyter_client.manager as manager, sys
def show(message):
    print(message["content"].get("text", ""), end="")
km, client = manager.start_new_kernel(kernel_name="python3")
for cell in ("import program", "print(program.tell())", "import importlib; importlib.reload(program)",
             "import megatron.core.models.model as m; importlib.reload(m)", "print(program.tell())"):
    client.execute_interactive(cell, timeout=60, output_hook=show)
client.stop_channels(); km.shutdown_kernel(now=True)
assert "mcore_autopatch.engine" not in sys.modules
"""
    told = launch_in("main.py", program=code, executable=make_venv(wheel, "ipykernel", "jupyter_client"))
    patched_in(told, 1)
    assert len(told) == 2


@pytest.mark.parametrize("compiled", [False, True], ids=["", "compile-bytecode"])
@pytest.mark.parametrize("link", ["copy", "symlink"])
def test_an_environment_made_by_uv(launch_in, patched_in, make_venv, wheel, tmp_path, link, compiled):
    uv = make_venv("uv").with_name("uv")
    folder = tmp_path / "made by uv"
    subprocess.run([uv, "venv", "-q", "--python", sys.executable, folder], check=True)
    interpreter = folder / "bin" / "python"
    options = [f"--link-mode={link}", *(["--compile-bytecode"] if compiled else [])]
    # uv does not read the configuration of pip, so what it needs is fetched by pip.
    wheels = tmp_path / "wheels"
    pip = [sys.executable, "-m", "pip", "download", "-q", "-d", wheels, wheel]
    subprocess.run(pip, check=True)
    install = [uv, "pip", "install", "-q", "--python", interpreter, "--no-index", "--find-links", wheels, *options]
    subprocess.run([*install, "mcore-autopatch"], check=True)
    patched_in(launch_in("-c", "import program; print(program.tell())", executable=interpreter), 1)
    run = ["run", "--no-project", "--offline", "--python", interpreter]
    patched_in(launch_in(*run, "python", "-c", "import program; print(program.tell())", executable=uv), 1)
    subprocess.run([uv, "pip", "uninstall", "-q", "--python", interpreter, "mcore-autopatch"], check=True)
    # uv leaves the bytecode of a module at the root, as of any other package's. Python imports none without its source.
    left = {path.relative_to(folder).parent.name for path in (folder / "lib").rglob("*mcore*")}
    assert left <= {"__pycache__"}
    gone = "import importlib.util as u; print(u.find_spec('_mcore_autopatch'), u.find_spec('mcore_autopatch'))"
    done = subprocess.run(
        [interpreter, "-c", gone], env=clean_environment(), capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("None None\n", "")


@pytest.mark.parametrize("options", [[], ["--venv"], ["--sh-boot"]], ids=["zipapp", "venv", "sh-boot"])
def test_pex(launch_in, patched_in, make_venv, bare, wheel, tmp_path, options):
    pex = make_venv("pex").with_name("pex")
    built = tmp_path / "built.pex"
    wheels = tmp_path / "wheels"
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "-d", wheels, wheel], check=True)
    command = [pex, "--no-pypi", "-f", wheels, "mcore-autopatch", "-o", built, *options, "--python", bare]
    subprocess.run([*command, "--inherit-path=fallback"], check=True, cwd=tmp_path)
    # A pex with an environment of its own does not look at PYTHONPATH.
    code = f"import sys; sys.path += {[str(tmp_path), str(tmp_path / 'fake')]}; import program; print(program.tell())"
    told = launch_in(built, "-c", code, executable=bare, PEX_ROOT=str(tmp_path / "root"))
    patched_in(told, 1)
