"""mtp-empty-loss-mask: no NaN where no token counts, and the same bits where one does."""

import json
from types import SimpleNamespace

import pytest

from mcore_autopatch.patches import mtp_empty_loss_mask

ID = "mtp-empty-loss-mask"
NAN = "ValueError: missing or not finite: 47 of 48 values, the first is embedding.word_embeddings.weight"
#: Case -> what it fails with where there is no fix.
ERRORS = {"empty": NAN, "first": NAN, "per-token": "ValueError: the MTP loss in the log is nan"}
ZEROS = "the MTP loss has zero gradients, those of the main loss are the same: 29 values "
#: megatron-core release -> status of the patch, and the reason if it is skipped.
EXPECTED = {
    "0.13.1": "SKIPPED MEGATRON_VERSION",
    "0.14.0": "APPLIED",
    "0.15.0": "APPLIED",
    "0.15.1": "APPLIED",
    "0.15.2": "APPLIED",
    "0.15.3": "APPLIED",
    "0.16.0": "APPLIED",
    "0.16.1": "APPLIED",
    "0.17.0": "SKIPPED MEGATRON_VERSION",
}


class Of012:
    def _postprocess(self, labels):
        return self.mtp(labels)


class Of016:
    def _postprocess(self, loss, loss_mask):
        loss_mask, num_tokens = roll_tensor(loss_mask, shifts=-1)  # noqa: F821
        self.log(loss.sum() / num_tokens)
        return MTPLossAutoScaler.apply(loss, 0.1 * loss / num_tokens)  # noqa: F821


class Of017:
    def _postprocess(self, loss, loss_mask):
        loss_mask, num_tokens = roll_tensor(loss_mask, shifts=-1)  # noqa: F821
        self.log(loss.sum() / num_tokens if num_tokens > 0 else 0)
        return MTPLossAutoScaler.apply(loss, 0.1 * loss / num_tokens.clamp(min=1))  # noqa: F821


class Clamped:
    def _postprocess(self, loss, loss_mask):
        loss_mask, num_tokens = roll_tensor(loss_mask, shifts=-1)  # noqa: F821
        num_tokens = num_tokens.clamp(min=1)
        return MTPLossAutoScaler.apply(loss, 0.1 * loss / num_tokens)  # noqa: F821


@pytest.mark.parametrize("model", [Of012, Of017, Clamped])
def test_does_nothing_where_the_count_is_no_divisor_or_never_zero(model):
    assert not mtp_empty_loss_mask.probe(SimpleNamespace(GPTModel=model))


def test_sees_the_bug_in_the_code():
    assert mtp_empty_loss_mask.probe(SimpleNamespace(GPTModel=Of016))


@pytest.mark.real
def test_the_probe_has_the_last_word_on_a_forced_patch(outcome):
    assert outcome("0.17.1", ID, MCORE_AUTOPATCH_FORCE=ID) == ("SKIPPED", "BUG_ABSENT")


@pytest.mark.real
def test_only_a_count_of_zero_changes_and_only_for_the_model(python, megatron_core):
    script = """
import json, torch
from megatron.core.models.gpt import gpt_model
from megatron.core.transformer import multi_token_prediction
ours, original = gpt_model.roll_tensor, multi_token_prediction.roll_tensor
masks = [torch.ones(2, 4), torch.full((2, 4), 0.01), torch.tensor([[1, 0, 0, 0]]), torch.zeros(2, 4),
         torch.zeros(2, 4, dtype=torch.bfloat16), torch.zeros(2, 4, dtype=torch.bool), torch.full((2, 4), torch.nan)]
counts = []
for mask in masks:
    (rolled, count), (expected, before) = ours(mask, shifts=-1, dims=-1), original(mask, -1, -1)
    assert torch.equal(rolled, expected) or rolled.isnan().any()
    assert (count.dtype, count.shape) == (before.dtype, before.shape)
    counts.append([before.item(), count.item()])
assert ours.__wrapped__ is original and not hasattr(original, "__mcore_autopatch__")
print(json.dumps(counts))
"""
    done = python("-c", script, overlays=[megatron_core("0.16.1")], check=0)
    counts = json.loads(done.stdout.splitlines()[-1])

    assert [before == after for before, after in counts] == [True, True, False, False, False, False, False]
    assert counts[2:6] == [[0, 1]] * 4
    assert str(counts[6]) == "[nan, nan]"


@pytest.mark.real
def test_no_nan_and_nothing_else_changes(reproduce):
    fixed = reproduce("0.17.1", ID, "empty", "first", "per-token", check=0)
    for version in ("0.14.0", "0.16.1"):
        without = reproduce(version, ID, check=1, MCORE_AUTOPATCH=0)
        with_us = reproduce(version, ID, check=0)

        # The digests in the details show that losses and gradients are the same bit for bit: where some token counts,
        # those of a run without us, and where none does, those of a release that has the fix.
        assert without == {**ERRORS, "some": with_us.pop("some")}
        assert with_us == fixed == dict.fromkeys(ERRORS, fixed["empty"])
        assert fixed["empty"].startswith(ZEROS)
