"""Behaviour on Ascend: the real torch_npu in fresh interpreters, with a driver that says how many NPUs there are.

Kernels cannot run, so tensors stay on the CPU. What torch and torch_npu answer when asked for the device is real.
"""

import json

import pytest

pytestmark = pytest.mark.real

#: What the driver may be asked: it creates no context, and may be asked before a fork.
HARMLESS = "aclrtGetDeviceCount"
#: Number of NPUs -> the row of the patch that has to match, and the device that has to be reported.
EXPECTED = {1: ["verl#6374", "npu"], 0: ["Megatron-LM#3297", "cpu"]}

IMPORT_TORCH = "import sys, torch; print('torch_npu' in sys.modules, torch.npu.is_available())"
TRANSFER = "from torch_npu.contrib import transfer_to_npu"
IMPORT_GPT_MODEL = """
import os, mcore_autopatch, torch
import megatron.core.models.gpt.gpt_model
(outcome,) = (outcome for outcome in mcore_autopatch.outcomes() if outcome.patch == "mtp-inference")
(device,) = (line for line in mcore_autopatch.report().splitlines() if line.startswith("device:"))
calls = set(open(os.environ["FAKE_NPU_LOG"]).read().split())
print(outcome.status.value, outcome.affected.source, device.split()[1], *calls, torch.cuda.is_available())
"""


def words(done):
    # Before it there are warnings of torch_npu's own.
    return done.stdout.splitlines()[-1].split()


@pytest.mark.parametrize(("count", "available"), [(1, "True"), (0, "False")])
def test_control_torch_loads_torch_npu_by_itself_and_counts_what_the_driver_reports(npu, python, count, available):
    assert words(python("-c", IMPORT_TORCH, check=0, **npu(count))) == ["True", available]


# transfer_to_npu lets torch.cuda answer for the NPU.
@pytest.mark.parametrize("before", ["", TRANSFER])
@pytest.mark.parametrize("version", ["0.16.0", "0.16.1"])
@pytest.mark.parametrize("count", EXPECTED)
def test_the_npu_decides_which_row_matches(npu, python, megatron_core, count, version, before):
    done = python("-c", before + IMPORT_GPT_MODEL, check=0, **npu(count, megatron_core(version)))
    cuda = str(bool(before and count))
    assert words(done) == ["applied", *EXPECTED[count], HARMLESS, cuda]


def test_finding_the_device_initialises_nothing(npu, python):
    code = """
import contextlib, os, pathlib, torch
from mcore_autopatch import installed
log = pathlib.Path(os.environ["FAKE_NPU_LOG"])
log.write_text("")
print(installed.device().value, torch.npu.is_initialized(), *log.read_text().split())
# The control: what does initialise the device is seen in the log, though the stand-in does not get it to the end.
with contextlib.suppress(RuntimeError):
    torch.npu.init()
assert "aclInit" in log.read_text().split()
"""
    assert words(python("-c", code, check=0, **npu(1))) == ["npu", "False", HARMLESS]


def test_where_torch_cannot_be_imported_for_want_of_cann_nothing_of_ours_imports_it(npu, python):
    code = """
import sys, mcore_autopatch
mcore_autopatch.install()
assert "device:        unknown until torch is loaded" in mcore_autopatch.report().splitlines()
assert "torch" not in sys.modules
import torch
"""
    done = python("-c", code, check=1, **{**npu(0), "LD_LIBRARY_PATH": ""})
    assert "Failed to load the backend extension: torch_npu" in done.stderr


def reproduce(python, *arguments, **keywords):
    done = python("-m", "mcore_autopatch.reproductions", *arguments, MCORE_AUTOPATCH_VERBOSE=1, **keywords)
    results = [json.loads(line) for line in done.stdout.splitlines()]
    return {result["case"]: result.get("error", "") for result in results}, done.stderr


@pytest.mark.parametrize("version", ["0.16.0", "0.16.1"])
def test_mtp_models_run_without_labels(npu, python, megatron_core, version):
    errors, log = reproduce(python, "mtp-inference", **npu(1, megatron_core(version)))
    assert errors == dict.fromkeys(["eval", "train", "zero", "labels"], "")
    assert "verl#6374" in log


def test_mtp_models_crash_without_labels_and_without_us(npu, python, megatron_core):
    keywords = npu(1, megatron_core("0.16.1"))
    errors, log = reproduce(python, "mtp-inference", "eval", "labels", MCORE_AUTOPATCH=0, **keywords)
    assert errors == {"eval": "AttributeError: 'NoneType' object has no attribute 'clone'", "labels": ""}
    assert "mcore-autopatch" not in log


def test_checkpoints_are_written_in_every_mode(npu, python, megatron_core):
    errors, log = reproduce(python, "serialization-format", **npu(1, megatron_core("0.12.1")))
    assert errors == dict.fromkeys(["sync", "async", "persistent"], "")
    # Here and in the spawned worker, where torch_npu is loaded anew.
    decisions = [line for line in log.splitlines() if "serialization-format: applied" in line]
    assert [", npu; affected:" in line for line in decisions] == [True, True]


def test_no_checkpoint_is_written_without_us(npu, python, megatron_core):
    keywords = npu(1, megatron_core("0.12.1"))
    errors, _ = reproduce(python, "serialization-format", "sync", MCORE_AUTOPATCH=0, **keywords)
    assert "_write_item() missing 1 required positional argument: 'serialization_format'" in errors["sync"]
