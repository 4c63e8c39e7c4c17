"""moe-without-te: a mixture of experts runs without Transformer Engine, with the results of the releases around."""

from types import SimpleNamespace

import pytest

from mcore_autopatch.patches import moe_without_te

ID = "moe-without-te"
ERROR = "NameError: name 'te_general_gemm' is not defined"
CASES = ("eval", "train", "fp64", "bf16")
#: megatron-core release -> status and reason, without Transformer Engine.
EXPECTED = {
    "0.12.0": "SKIPPED MEGATRON_VERSION",
    "0.12.3": "SKIPPED MEGATRON_VERSION",
    "0.13.0": "APPLIED",
    "0.13.1": "APPLIED",
    "0.14.0": "APPLIED",
    "0.15.0": "APPLIED",
    "0.15.1": "APPLIED",
    "0.15.2": "APPLIED",
    "0.15.3": "APPLIED",
    "0.16.0": "APPLIED",
    "0.16.1": "APPLIED",
    "0.17.0": "SKIPPED MEGATRON_VERSION",
    "0.17.1": "SKIPPED MEGATRON_VERSION",
}


class Router:
    @staticmethod
    def forward(weight):
        return te_general_gemm is not None  # noqa: F821


class RouterOf012:
    @staticmethod
    def forward(weight):
        return weight


@pytest.mark.parametrize(
    "module",
    [
        SimpleNamespace(),
        SimpleNamespace(RouterGatingLinearFunction=RouterOf012),
        SimpleNamespace(RouterGatingLinearFunction=Router, te_general_gemm=None),
        SimpleNamespace(RouterGatingLinearFunction=Router, te_general_gemm=print),
    ],
    ids=["no such router", "a router that does not ask", "no Transformer Engine, bound", "Transformer Engine"],
)
def test_does_nothing_where_the_name_is_bound_or_not_asked_for(module):
    assert not moe_without_te.probe(module)


def test_sees_the_bug_in_the_code():
    assert moe_without_te.probe(SimpleNamespace(RouterGatingLinearFunction=Router))


def test_a_router_that_cannot_be_read_is_an_error_rather_than_a_bug():
    with pytest.raises(AttributeError):
        moe_without_te.probe(SimpleNamespace(RouterGatingLinearFunction=SimpleNamespace(forward=len)))


@pytest.mark.real
@pytest.mark.parametrize("version", ["0.12.3", "0.17.1"])
def test_the_probe_has_the_last_word_on_a_forced_patch(outcome, version):
    assert outcome(version, ID, MCORE_AUTOPATCH_FORCE=ID) == ("SKIPPED", "BUG_ABSENT")


@pytest.fixture(scope="module")
def before():
    """Results of the last release before the bug, shared by the tests; filled by the first that needs them."""
    return {}


@pytest.mark.real
@pytest.mark.parametrize("version", ["0.13.0", "0.16.1", "0.17.1"])
def test_losses_and_gradients_are_those_of_the_release_before_the_bug(reproduce, before, version):
    """Bit for bit, with the patch where it is needed and without it around."""
    before = before or before.update(reproduce("0.12.3", ID, check=0)) or before

    assert reproduce(version, ID, check=0) == before
    assert set(before) == set(CASES)
    assert len(set(before.values())) == len(CASES), "results that should differ do not"


@pytest.mark.real
@pytest.mark.parametrize("version", ["0.13.0", "0.16.1"])
def test_without_us_it_crashes(reproduce, version):
    assert reproduce(version, ID, check=1, MCORE_AUTOPATCH=0) == dict.fromkeys(CASES, ERROR)
