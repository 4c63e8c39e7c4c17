"""Builds stand-ins for the CANN driver libraries, so that the real torch_npu imports on a machine without an NPU.

The libraries in the torch_npu wheel are linked against libascendcl.so, libhccl.so and others that only Huawei's CANN
toolkit ships. The stand-ins define every symbol that is missing, as a function that does nothing and returns 0, the
code for success. That is enough for torch_npu to import, register itself with torch, and answer which devices there
are. Kernels do not run, so tensors stay on the CPU.

Two environment variables are read by the stand-ins:

- FAKE_NPU_COUNT: how many NPUs the driver reports; none by default.
- FAKE_NPU_LOG: a file to which the name of every driver function that is called is appended.

Seen working with torch 2.13.0+cpu and torch-npu 2.13.0 on Python 3.11, x86-64. Needs gcc, nm and ldd.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

#: The programs that build() runs.
TOOLS = ("gcc", "nm", "ldd")
DRIVER = "libascendcl.so"

PROLOGUE = r"""
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void called(const char *line) {
    const char *path = getenv("FAKE_NPU_LOG");
    int file = path ? open(path, O_WRONLY | O_APPEND | O_CREAT, 0600) : -1;
    if (file >= 0) {
        if (write(file, line, strlen(line)) < 0) abort();
        close(file);
    }
}

#define STUB(name) long name() { called(#name "\n"); return 0; }

int aclrtGetDeviceCount(uint32_t *count) {
    const char *wanted = getenv("FAKE_NPU_COUNT");
    called("aclrtGetDeviceCount\n");
    *count = wanted ? atoi(wanted) : 0;
    return 0;
}
"""


def build(torch_folder: Path, torch_npu_folder: Path, out_folder: Path) -> None:
    """Compile the stand-ins that the libraries of ``torch_npu_folder`` need into ``out_folder``, or nothing at all."""
    npu = sorted(torch_npu_folder.rglob("*.so"))
    found, missing = _linked([*npu, Path(sys.executable)], [torch_folder / "lib", torch_npu_folder / "lib"])
    if DRIVER not in missing:
        raise RuntimeError(f"a real {DRIVER} is on the library path, and stand-ins must not get in its way")
    wanted = _symbols("undefined", npu) - _symbols("defined", [*npu, *found])
    stubs = [f"STUB({name})" for name in sorted(wanted - {"aclrtGetDeviceCount"})]

    out_folder.parent.mkdir(parents=True, exist_ok=True)
    # In a folder of its own until it is complete, so that a stopped build leaves nothing that looks finished.
    with tempfile.TemporaryDirectory(dir=out_folder.parent, prefix=".ascend-driver-") as scratch:
        source = Path(scratch, "driver.c")
        source.write_text("\n".join([PROLOGUE, *stubs, ""]))
        partial = Path(scratch, "lib")
        partial.mkdir()
        # torch_npu also looks functions up by name, in this very library.
        _run("gcc", "-w", "-shared", "-fPIC", "-fno-builtin", "-o", partial / DRIVER, source)
        # Which library defines a symbol does not matter: the others are this one under another name.
        for name in sorted(missing - {DRIVER}):
            (partial / name).symlink_to(DRIVER)
        try:
            partial.rename(out_folder)
        except OSError:
            if not out_folder.is_dir():  # unless another process has built it meanwhile
                raise


def library_path(*folders: Path) -> str:
    """Return a value for LD_LIBRARY_PATH: ``folders``, then what it is now: some Pythons need that to start."""
    # An empty entry would stand for the current folder.
    return os.pathsep.join(filter(None, [*map(str, folders), os.environ.get("LD_LIBRARY_PATH")]))


def _linked(binaries: list[Path], search: list[Path]) -> tuple[list[Path], set[str]]:
    """Return the libraries that ``binaries`` load, directly or not, and the names of those that are nowhere."""
    rows = _run("ldd", *binaries, LD_LIBRARY_PATH=library_path(*search)).splitlines()
    words = [row.split() for row in rows if row.startswith("\t")]
    missing = {row[0] for row in words if row[1:] == ["=>", "not", "found"]}
    # The loader itself is listed by its path, without an arrow.
    found = {row[2] if row[1] == "=>" else row[0] for row in words if row[0] not in missing}
    return sorted(Path(name) for name in found if name.startswith("/")), missing


def _symbols(which: str, libraries: list[Path]) -> set[str]:
    """Return the names in the dynamic symbol tables that are ``defined`` or ``undefined``, without weak references."""
    rows = (row.split() for row in _run("nm", "-D", f"--{which}-only", *libraries).splitlines())
    # Rows are "[address] type name[@version]", the others are headings. Types w and v may stay undefined.
    return {row[-1].split("@")[0] for row in rows if len(row) > 1 and row[-2] not in "wv"}


def _run(program: str, *arguments: object, **variables: str) -> str:
    command = [shutil.which(program) or program, *map(str, arguments)]
    environment = {**os.environ, **variables, "LC_ALL": "C"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{program} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout
