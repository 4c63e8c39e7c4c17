"""On Ascend, whatever is imported first: the device is the NPU, and nothing of ours makes a context on it.

Only `nox -s ascend` runs these; see conftest.py.
"""

import pytest

from mcore_autopatch import catalogue

pytestmark = pytest.mark.real

TRANSFER = "from torch_npu.contrib import transfer_to_npu"
MEGATRON = "import megatron.core.models.gpt.gpt_model"
#: What may be asked of the driver: it creates no context, and may be asked before a fork.
HARMLESS = ["aclrtGetDeviceCount"]
#: Imports in their order. `import torch_npu` imports torch, and `import torch` loads torch_npu.
ORDERS = {
    "torch_npu": ["import torch_npu", MEGATRON],
    "torch_npu, megatron, transfer_to_npu": ["import torch_npu", MEGATRON, TRANSFER],
    "transfer_to_npu": [TRANSFER, MEGATRON],
    "torch, transfer_to_npu": ["import torch", TRANSFER, MEGATRON],
    "megatron, transfer_to_npu": [MEGATRON, TRANSFER],
    "megatron": [MEGATRON],
    "us": ["import mcore_autopatch; mcore_autopatch.install()", TRANSFER, MEGATRON],
    "us late": ["import sys; del sys.meta_path[0]", MEGATRON, TRANSFER, "import mcore_autopatch as m; m.install()"],
}
REPORT = """
import os, sys, torch
from mcore_autopatch import installed, outcomes
(outcome,) = (outcome for outcome in outcomes() if outcome.patch == "mtp-inference")
failed = [outcome.patch for outcome in outcomes() if outcome.status.name == "FAILED"]
print(outcome.status.name, outcome.affected.source, installed.device().value, torch.cuda.is_available(), failed)
print(torch.npu.is_initialized(), *sorted(set(open(os.environ["FAKE_NPU_LOG"]).read().split())))
"""


@pytest.mark.parametrize("version", ["0.16.0", "0.16.1"])
@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_the_device_is_the_npu_also_where_torch_cuda_answers_for_it(npu, python, megatron_core, order, version):
    code = "\n".join([*order, REPORT])
    done = python("-W", "ignore", "-c", code, check=0, **npu(1, megatron_core(version)))
    *_, row, driver = done.stdout.splitlines()
    assert row == f"APPLIED verl#6374 npu {TRANSFER in order} []"
    assert driver == f"False {' '.join(HARMLESS)}"


@pytest.mark.parametrize("version", ["0.12.1", "0.16.1"])
def test_importing_every_target_asks_the_driver_nothing_but_the_number_of_devices(npu, python, megatron_core, version):
    targets = sorted({patch.target for patch in catalogue.load().patches.values()})
    code = f"""
import contextlib, importlib, os
{TRANSFER}
for target in {targets}:
    with contextlib.suppress(ModuleNotFoundError):  # of another release
        importlib.import_module(target)
from mcore_autopatch import doctor, outcomes, report
report(), doctor.findings(active=True)
statuses = [outcome.status.name for outcome in outcomes()]
print(statuses.count("APPLIED") > 2, statuses.count("FAILED"), *set(open(os.environ["FAKE_NPU_LOG"]).read().split()))
"""
    done = python("-W", "ignore", "-c", code, check=0, **npu(1, megatron_core(version)))
    assert done.stdout.splitlines()[-1] == f"True 0 {' '.join(HARMLESS)}"


@pytest.mark.parametrize("command", ["status", "doctor"])
def test_the_command_line_asks_the_driver_nothing_but_the_number_of_devices(
    npu, python, megatron_core, tmp_path, command
):
    python("-W", "ignore", "-m", "mcore_autopatch", command, check=0, **npu(1, megatron_core("0.16.1")))
    assert sorted(set((tmp_path / "driver.log").read_text().split())) == HARMLESS


CHILD = """
import subprocess, sys
PARENT
code = "import torch; from mcore_autopatch import installed; print(hasattr(torch, 'npu'), installed.device().value)"
print(subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, capture_output=True).stdout.decode())
"""


@pytest.mark.parametrize(
    ("before", "autoload", "expected"),
    [
        ("import torch_npu", 1, "True npu"),
        (TRANSFER, 1, "True npu"),
        # As earlier torch_npus leave it for children of a process that has imported them before torch.
        ("import torch_npu", 0, "False cpu"),
    ],
)
def test_a_child_finds_the_npu_where_its_torch_loads_torch_npu(npu, python, before, autoload, expected):
    keywords = {**npu(1), "TORCH_DEVICE_BACKEND_AUTOLOAD": autoload}
    done = python("-W", "ignore", "-c", CHILD.replace("PARENT", before), check=0, **keywords)
    assert done.stdout.split("\n")[-3:][0] == expected


@pytest.mark.parametrize("autoload", [0, 1])
@pytest.mark.parametrize("mode", ["async", "persistent"])
def test_checkpoints_are_written_whether_or_not_the_worker_has_torch_npu(npu, python, megatron_core, mode, autoload):
    """The trainer has imported torch_npu before torch, and the worker has what TORCH_DEVICE_BACKEND_AUTOLOAD says."""
    code = f"""
import torch_npu
from mcore_autopatch.reproductions import _checkpoint
if __name__ == "__main__":
    print(_checkpoint.round_trip({mode!r}))
"""
    done = python("-W", "ignore", "-c", code, check=0, **npu(1, megatron_core("0.12.1")))
    assert done.stdout.splitlines()[-1] == "checkpoint read back equal, 7 entries"
