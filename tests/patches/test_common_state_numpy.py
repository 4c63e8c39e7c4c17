"""common-state-numpy: a checkpoint with NumPy values in its common state can be loaded, if somebody asks for it."""

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from mcore_autopatch.patches import common_state_numpy

ID = "common-state-numpy"
ON = {"MCORE_AUTOPATCH_ENABLE": ID}
SCRIPT = Path(__file__).parent / "common_state_numpy_loads.py"
FAILED = "UnpicklingError: Weights only load failed."
SCALAR = "Unsupported global: GLOBAL numpy._core.multiarray.scalar was not an allowed global"
ARRAY = (
    "Can only build Tensor, Parameter, OrderedDict or types allowlisted via `add_safe_globals`, but got <class 'numpy."
)
HINT = f"{ID} would have prevented this ({common_state_numpy.patch.title}). It is off unless"
#: megatron-core release -> status and reason. It is off unless asked for, everywhere.
EXPECTED = {
    "0.13.1": "SKIPPED SWITCHED_OFF",
    "0.14.0": "SKIPPED SWITCHED_OFF",
    "0.16.1": "SKIPPED SWITCHED_OFF",
    "0.17.0": "SKIPPED SWITCHED_OFF",
    "0.18.1": "SKIPPED SWITCHED_OFF",
    "0.18.2": "SKIPPED SWITCHED_OFF",
    "0.19.0": "SKIPPED SWITCHED_OFF",
    "0.19.1": "SKIPPED SWITCHED_OFF",
    "0.19.2": "SKIPPED SWITCHED_OFF",
}
#: The same where MCORE_AUTOPATCH_ENABLE asks for it.
EXPECTED_ON = {"0.13.1": ("SKIPPED", "MEGATRON_VERSION"), "0.17.1": ("APPLIED", None)}
#: From 0.18 on, importing megatron.core.dist_checkpointing needs triton, which CPU builds of torch do not bring.
NEWER = pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="megatron-core 0.18 needs triton")


def load_common_of_0_13(path):
    return torch.load(path, map_location="cpu", weights_only=False)  # noqa: F821


def load_common(path):
    return torch.load(path, map_location="cpu")  # noqa: F821


def load_common_of_another_kind(path):
    return path.read_bytes()


@pytest.mark.parametrize("function", [load_common_of_0_13, load_common_of_another_kind])
def test_does_nothing_where_torch_is_told_what_to_load(function):
    assert not common_state_numpy.probe(SimpleNamespace(load_common=function))
    strategy = SimpleNamespace(load_common=function)
    assert not common_state_numpy.probe(SimpleNamespace(TorchCommonLoadStrategy=strategy))


def test_sees_the_bug_in_the_code():
    assert common_state_numpy.probe(SimpleNamespace(load_common=load_common))
    strategy = SimpleNamespace(load_common=load_common)
    assert common_state_numpy.probe(SimpleNamespace(TorchCommonLoadStrategy=strategy))


def test_a_code_that_cannot_be_read_is_an_error_rather_than_a_bug():
    with pytest.raises(TypeError):
        common_state_numpy.probe(SimpleNamespace(load_common=len))


@pytest.mark.real
def test_does_nothing_unless_asked_for(outcome):
    assert outcome("0.17.1", ID) == ("SKIPPED", "SWITCHED_OFF")


@pytest.mark.real
@pytest.mark.parametrize("version", EXPECTED_ON)
def test_what_becomes_of_it_when_asked_for(outcome, version):
    assert outcome(version, ID, **ON) == EXPECTED_ON[version]


@pytest.mark.real
def test_the_probe_has_the_last_word_on_a_forced_patch(outcome):
    assert outcome("0.13.1", ID, MCORE_AUTOPATCH_FORCE=ID, **ON) == ("SKIPPED", "BUG_ABSENT")


@pytest.mark.real
@pytest.mark.parametrize("version", ["0.14.0", pytest.param("0.18.2", marks=NEWER)])
def test_a_checkpoint_comes_back_equal_only_with_us(reproduce, version):
    without = reproduce(version, ID, check=1, MCORE_AUTOPATCH=0)
    assert all(text.startswith(FAILED) for text in without.values())
    assert {case for case, text in without.items() if SCALAR in text} == {"scalar", "earlier"}
    assert ARRAY in without["array"]

    assert reproduce(version, ID, check=0, **ON) == {
        "scalar": "8 values read back equal",
        "array": "10 values read back equal",
        "earlier": "8 values read back equal",
    }


@NEWER
@pytest.mark.real
def test_0_19_needs_us_for_the_checkpoints_of_earlier_releases(reproduce):
    without = reproduce("0.19.2", ID, check=1, MCORE_AUTOPATCH=0)

    assert [case for case, text in without.items() if SCALAR in text] == ["earlier"]
    assert set(reproduce("0.19.2", ID, check=0, **ON)) == set(without)


@pytest.mark.real
def test_nothing_else_is_allowed_and_nothing_at_any_other_time(python, megatron_core):
    def run(**variables):
        done = python(SCRIPT, overlays=[megatron_core("0.14.0")], check=0, **variables)
        return json.loads(done.stdout.splitlines()[-1]), done.stderr

    (off, log), (hinted, hinted_log), (on, log_on) = run(MCORE_AUTOPATCH=0), run(), run(**ON)

    # Switched on: what cannot be loaded without us can be, and the rest is as it was.
    assert on.pop("scalar") == "np.float64(0.1)"
    assert on.pop("other NumPy") == "[np.int8(3), array([0., 1.])]"
    assert on.pop("threads") == ["np.float64(0.1)"]
    assert FAILED in on["own class"] and "GLOBAL __main__.Opened" in on.pop("own class")
    assert off["safe globals are as before"] and off["safe globals are as before threads"]
    assert off["uint32"] == "array([0, 1, 2], dtype=uint32)"
    assert on["place"].startswith(f"{common_state_numpy.patch.target}.TorchCommonLoadStrategy.load_common(self, ")
    assert {name: off[name] for name in on} == on
    for name in ("Python objects", "other classes", "elsewhere"):
        assert on[name].startswith(FAILED)

    # Not switched on: the same errors, and the log says what would help, where it would.
    assert hinted == off
    assert hinted_log.count(HINT) == len(["scalar", "other NumPy", "own class"]) + 160
    assert ID not in log and ID not in log_on
