"""Launchers that need nothing to be installed: each process is patched exactly once."""

import ast

import pytest


@pytest.mark.real
def test_torchrun(launch, patched_in):
    options = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "main.py")
    told = launch(*options, program="import torch, program\nprint(program.tell(), flush=True)")
    patched_in(told, 2)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("executor", ["Pool", "ProcessPoolExecutor"])
def test_a_pool_of_processes(launch, patched_in, method, executor):
    pool = "context.Pool(2, maxtasksperchild=1)"
    if executor != "Pool":
        pool = "concurrent.futures.ProcessPoolExecutor(2, mp_context=context)"
    code = f"""
import concurrent.futures, multiprocessing, os, program, sys, time
if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    with {pool} as pool:
        for told in pool.map(program.tell, range(6)):
            assert told[0] != os.getpid()
            print(told)
        print((os.getpid(), "parent", "mcore_autopatch.engine" in sys.modules))
"""
    *told, parent = launch("main.py", program=code)
    patched_in(told, len({pid for pid, *_ in told}))
    assert parent[1:] == ("parent", False)


@pytest.mark.parametrize("how", ["-m main", "main.py", "-m runpy main", "-m cProfile -o profile main.py"])
def test_ways_to_start_a_program(launch, patched_in, how):
    patched_in(launch(*how.split(), program="import program\nprint(program.tell())"), 1)


def test_a_child_started_with_another_program_in_between(launch, patched_in):
    code = """
import os, program, subprocess, sys
print(program.tell(), flush=True)
subprocess.run(["sh", "-c", f"exec {sys.executable} -c 'import program; print(program.tell())'"], check=True)
"""
    patched_in(launch("main.py", program=code), 2)


@pytest.mark.parametrize("options", [[], ["-n", "2"]], ids=["alone", "xdist"])
def test_pytest(launch, patched_in, tmp_path, options):
    (tmp_path / "test_it.py").write_text("""
import pathlib, program, pytest
@pytest.mark.parametrize("number", range(6))
def test_it(number):
    pathlib.Path(f"told-{number}").write_text(repr(program.tell()))
""")
    launch("-m", "pytest", "-q", "-p", "no:cacheprovider", *options, "test_it.py")
    told = [ast.literal_eval(path.read_text()) for path in tmp_path.glob("told-*")]
    assert len(told) == 6
    patched_in(told, 2 if options else 1)


def test_processes_that_do_not_import_megatron_load_nothing_of_it(launch):
    code = """
import multiprocessing, sys
OURS = "_mcore_autopatch", "mcore_autopatch", "wrapt", "packaging"
def loaded(_): return sorted(name for name in sys.modules if name.startswith(OURS))
if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            print((method, *pool.map(loaded, [0])))
"""
    told = launch("main.py", program=code)
    assert told == [(method, ["_mcore_autopatch"]) for method in ("fork", "spawn", "forkserver")]
