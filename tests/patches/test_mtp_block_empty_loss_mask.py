"""mtp-block-empty-loss-mask: the same as mtp-empty-loss-mask, in 0.12 and 0.13."""

from types import SimpleNamespace

import pytest
from test_mtp_empty_loss_mask import ERRORS, ZEROS, Of016, Of017

from mcore_autopatch.patches import mtp_block_empty_loss_mask

ID = "mtp-block-empty-loss-mask"
#: megatron-core release -> status of the patch, and the reason if it is skipped. 0.11 has no MTP.
EXPECTED = {
    "0.12.0": "APPLIED",
    "0.12.1": "APPLIED",
    "0.12.2": "APPLIED",
    "0.12.3": "APPLIED",
    "0.13.0": "APPLIED",
    "0.13.1": "APPLIED",
    "0.14.0": "SKIPPED MEGATRON_VERSION",
}


class Of014:
    def forward(self, hidden_states):
        return [layer(hidden_states) for layer in self.layers]


@pytest.mark.parametrize("forward", [Of014.forward, Of017._postprocess])
def test_does_nothing_where_the_block_does_not_divide_by_the_count(forward):
    assert not mtp_block_empty_loss_mask.probe(
        SimpleNamespace(MultiTokenPredictionBlock=SimpleNamespace(forward=forward))
    )


def test_sees_the_bug_in_the_code():
    block = SimpleNamespace(forward=Of016._postprocess)

    assert mtp_block_empty_loss_mask.probe(SimpleNamespace(MultiTokenPredictionBlock=block))


@pytest.mark.real
def test_the_probe_has_the_last_word_on_a_forced_patch(outcome):
    assert outcome("0.14.0", ID, MCORE_AUTOPATCH_FORCE=ID) == ("SKIPPED", "BUG_ABSENT")


@pytest.mark.real
@pytest.mark.parametrize("version", ["0.12.0", "0.13.1"])
def test_no_nan_and_nothing_else_changes(reproduce, version):
    without = reproduce(version, ID, check=1, MCORE_AUTOPATCH=0)
    with_us = reproduce(version, ID, check=0)

    # The digest in the detail shows that losses and gradients are the same bit for bit.
    assert without == {**ERRORS, "some": with_us.pop("some")}
    assert len(set(with_us.values())) == 1
    assert with_us["empty"].startswith(ZEROS)
