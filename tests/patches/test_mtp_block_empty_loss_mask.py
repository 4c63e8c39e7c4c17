"""mtp-block-empty-loss-mask: the same as mtp-empty-loss-mask, in 0.12 and 0.13."""

from types import SimpleNamespace

import pytest

from mcore_autopatch.patches import mtp_block_empty_loss_mask

ID = "mtp-block-empty-loss-mask"
NAN = "ValueError: missing or not finite: 47 of 48 values, the first is embedding.word_embeddings.weight"
#: Case -> what it fails with where there is no fix.
ERRORS = {"empty": NAN, "first": NAN, "per-token": "ValueError: the MTP loss in the log is nan"}
ZEROS = "the MTP loss has zero gradients, those of the main loss are the same: 29 values "
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


class Of013:
    def forward(self, loss, loss_mask):
        loss_mask, num_tokens = roll_tensor(loss_mask, shifts=-1)  # noqa: F821
        return MTPLossAutoScaler.apply(loss, 0.1 * loss / num_tokens)  # noqa: F821


class Clamped:
    def forward(self, loss, loss_mask):
        loss_mask, num_tokens = roll_tensor(loss_mask, shifts=-1)  # noqa: F821
        return MTPLossAutoScaler.apply(loss, 0.1 * loss / num_tokens.clamp(min=1))  # noqa: F821


class Of014:
    def forward(self, hidden_states):
        return [layer(hidden_states) for layer in self.layers]


@pytest.mark.parametrize("block", [Clamped, Of014])
def test_does_nothing_where_the_block_does_not_divide_by_the_count(block):
    assert not mtp_block_empty_loss_mask.probe(SimpleNamespace(MultiTokenPredictionBlock=block))


def test_sees_the_bug_in_the_code():
    assert mtp_block_empty_loss_mask.probe(SimpleNamespace(MultiTokenPredictionBlock=Of013))


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
