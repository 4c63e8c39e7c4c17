"""mtp-recompute-padding-mask: MTP layers are recomputed, and the padding mask reaches them both times."""

import importlib.util
from types import SimpleNamespace

import pytest

from mcore_autopatch.patches import mtp_recompute_padding_mask

ID = "mtp-recompute-padding-mask"
CASES = ("plain", "mask", "block")
ERROR = "TypeError: MultiTokenPredictionLayer._checkpointed_forward() got an unexpected keyword argument 'padding_mask'"
#: megatron-core release -> status of the patch, and the reason if it is skipped.
EXPECTED = {
    "0.12.0": "SKIPPED MEGATRON_VERSION",
    "0.17.1": "SKIPPED MEGATRON_VERSION",
    "0.18.0": "APPLIED",
    "0.18.1": "APPLIED",
    "0.18.2": "APPLIED",
    "0.19.0": "SKIPPED MEGATRON_VERSION",
    "0.19.2": "SKIPPED MEGATRON_VERSION",
}
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="megatron-core 0.18 and 0.19 cannot be imported without triton"
)


class Of017:
    def forward(self, hidden_states):
        return self._checkpointed_forward(self._proj_and_transformer_layer, hidden_states)

    def _checkpointed_forward(self, forward_func, *args, **kwargs): ...
    def _proj_and_transformer_layer(self, hidden_states): ...


class Of018:
    def forward(self, hidden_states, padding_mask=None):
        return self._checkpointed_forward(hidden_states, padding_mask=padding_mask)

    def _checkpointed_forward(self, hidden_states, context=None):
        """Call the method twice, as forward and backward pass do."""
        return self, [self._proj_and_transformer_layer(hidden_states, context=context) for _ in range(2)]

    def _proj_and_transformer_layer(self, hidden_states, context=None, padding_mask=None):
        return hidden_states, context, padding_mask


class Of019(Of018):
    def _checkpointed_forward(self, hidden_states, padding_mask=None, context=None): ...


class OfNobodyYet(Of018):
    def forward(self, hidden_states):
        return self._checkpointed_forward(hidden_states)


@pytest.mark.parametrize("layer", [Of017, Of019, OfNobodyYet])
def test_does_nothing_where_the_mask_is_taken_or_not_given(layer):
    assert not mtp_recompute_padding_mask.probe(SimpleNamespace(MultiTokenPredictionLayer=layer))


def test_sees_the_bug_in_the_code():
    assert mtp_recompute_padding_mask.probe(SimpleNamespace(MultiTokenPredictionLayer=Of018))


def test_without_a_mask_the_original_gets_the_very_layer():
    layer = Of018()
    replacement = mtp_recompute_padding_mask.with_padding_mask(Of018._checkpointed_forward)

    for arguments in ({}, {"padding_mask": None}):
        assert replacement(layer, 1, context=2, **arguments) == (layer, [(1, 2, None)] * 2)


def test_the_mask_reaches_every_call_and_no_other_layer():
    layer = Of018()
    replacement = mtp_recompute_padding_mask.with_padding_mask(Of018._checkpointed_forward)

    assert replacement(layer, 1, 2, padding_mask=3)[1] == [(1, 2, 3)] * 2
    assert layer._proj_and_transformer_layer(1) == (1, None, None)


@pytest.mark.real
def test_the_probe_has_the_last_word_on_a_forced_patch(outcome):
    assert outcome("0.17.1", ID, MCORE_AUTOPATCH_FORCE=ID) == ("SKIPPED", "BUG_ABSENT")


@pytest.mark.real
@needs_triton
@pytest.mark.parametrize("version", ["0.18.0", "0.18.2"])
def test_without_us_training_fails(reproduce, version):
    assert reproduce(version, ID, check=1, MCORE_AUTOPATCH=0) == dict.fromkeys(CASES, ERROR)


@pytest.mark.real
@needs_triton
def test_results_are_those_of_the_release_that_has_the_fix(reproduce):
    """Bit for bit, which the digests in the details show."""
    oldest, newest, fixed = (reproduce(version, ID, check=0) for version in ("0.18.0", "0.18.2", "0.19.2"))

    assert oldest == newest == fixed
    assert fixed["mask"].startswith("calls that saw the mask: 2; losses and gradients are those without recompute: ")
    assert fixed["block"].startswith("calls that saw the mask: 1; losses and gradients are those without recompute: ")
    assert fixed["plain"].startswith("losses and gradients are those without recompute: ")
