"""Behaviour on Ascend: the real torch_npu in fresh interpreters, with a driver that says how many NPUs there are.

Kernels cannot run, so tensors stay on the CPU. What torch and torch_npu answer when asked for the device is real.
"""

import pytest

pytestmark = pytest.mark.real

IMPORT_TORCH = "import sys, torch; print('torch_npu' in sys.modules, torch.npu.is_available())"
TRANSFER = "from torch_npu.contrib import transfer_to_npu"
IMPORT_GPT_MODEL = """
import mcore_autopatch, torch
import megatron.core.models.gpt.gpt_model
(outcome,) = (outcome for outcome in mcore_autopatch.outcomes() if outcome.patch == "mtp-inference")
(device,) = (line for line in mcore_autopatch.report().splitlines() if line.startswith("device:"))
print(outcome.status.value, outcome.affected.source, device.split()[1], torch.cuda.is_available())
"""
#: What the driver may be asked: it creates no context and can be asked before a fork.
HARMLESS = {"aclrtGetDeviceCount"}
#: Number of NPUs -> the row of the patch that has to match, and the device that has to be reported.
EXPECTED = {1: ("verl#6374", "npu"), 0: ("Megatron-LM#3297", "cpu")}


def last_line(done):
    # torch_npu prints warnings of its own before.
    return done.stdout.splitlines()[-1].split()


@pytest.mark.parametrize(("count", "available"), [(1, "True"), (0, "False")])
def test_control_torch_loads_torch_npu_by_itself_and_counts_what_the_driver_reports(npu, python, count, available):
    assert last_line(python("-c", IMPORT_TORCH, check=0, **npu(count))) == ["True", available]


@pytest.mark.parametrize("version", ["0.16.0", "0.16.1"])
@pytest.mark.parametrize("count", EXPECTED)
def test_the_npu_decides_which_row_matches(npu, python, megatron_core, tmp_path, version, count):
    log = tmp_path / "driver.log"
    done = python("-c", IMPORT_GPT_MODEL, check=0, FAKE_NPU_LOG=log, **npu(count, megatron_core(version)))
    assert last_line(done) == ["applied", *EXPECTED[count], "False"]
    assert set(log.read_text().split()) == HARMLESS


@pytest.mark.parametrize("version", ["0.16.0", "0.16.1"])
@pytest.mark.parametrize("count", EXPECTED)
def test_transfer_to_npu_which_answers_for_cuda_fools_nobody(npu, python, megatron_core, version, count):
    done = python("-c", TRANSFER + IMPORT_GPT_MODEL, check=0, **npu(count, megatron_core(version)))
    assert last_line(done) == ["applied", *EXPECTED[count], str(count > 0)]


def test_finding_the_device_initialises_nothing(npu, python, tmp_path):
    log = tmp_path / "driver.log"
    code = f"""
import contextlib, pathlib, torch
from mcore_autopatch import installed
log = pathlib.Path({str(log)!r})
log.write_text("")
print(installed.device().value, torch.npu.is_initialized(), *sorted(set(log.read_text().split())))
# The control: what does initialise the device is seen in the log.
with contextlib.suppress(RuntimeError):  # the stand-in driver does not get it to the end
    torch.npu.init()
assert "aclInit" in log.read_text().split()
"""
    done = python("-c", code, check=0, FAKE_NPU_LOG=log, **npu(1))
    assert last_line(done) == ["npu", "False", *HARMLESS]


def test_where_torch_cannot_be_imported_for_want_of_cann_nothing_of_ours_does_it(npu, python):
    code = """
import sys, mcore_autopatch
mcore_autopatch.install()
assert "device:        unknown until torch is loaded" in mcore_autopatch.report().splitlines()
assert "torch" not in sys.modules
import torch
"""
    done = python("-c", code, check=1, **{**npu(0), "LD_LIBRARY_PATH": ""})
    assert "Failed to load the backend extension: torch_npu" in done.stderr
