"""mtp-block-inference: a model of 0.12 or 0.13 with multi-token prediction runs without labels."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from mcore_autopatch.patches import mtp_block_inference

ID = "mtp-block-inference"
CRASH = "AssertionError: labels should not be None for calculating multi token prediction loss."
LOGITS = "logits (2, 8, 64) equal those without MTP"
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
    def forward(
        self, input_ids, hidden_states, labels, loss_mask=None, output_layer=None, compute_language_model_loss=None
    ):
        assert labels is not None, "labels should not be None for calculating multi token prediction loss."


class WithoutAssertion:
    def forward(
        self, input_ids, hidden_states, labels, loss_mask=None, output_layer=None, compute_language_model_loss=None
    ):
        if labels is None:
            return hidden_states


class Of014:
    def forward(self, input_ids, hidden_states, embedding=None):
        return hidden_states


@pytest.mark.parametrize("block", [WithoutAssertion, Of014])
def test_does_nothing_where_the_block_does_without_labels(block):
    assert not mtp_block_inference.probe(SimpleNamespace(MultiTokenPredictionBlock=block))


def test_sees_the_bug_in_the_code():
    assert mtp_block_inference.probe(SimpleNamespace(MultiTokenPredictionBlock=Of013))


@pytest.mark.real
def test_the_probe_has_the_last_word_on_a_forced_patch(outcome):
    assert outcome("0.14.0", ID, MCORE_AUTOPATCH_FORCE=ID) == ("SKIPPED", "BUG_ABSENT")


@pytest.mark.real
@pytest.mark.parametrize("version", ["0.12.0", "0.13.1"])
def test_logits_are_those_of_the_model_without_mtp(reproduce, version):
    without = reproduce(version, ID, check=1, MCORE_AUTOPATCH=0)
    with_us = reproduce(version, ID, check=0)

    assert without["eval"] == without["train"] == CRASH
    assert with_us["eval"] == LOGITS
    assert with_us["train"] == "logits equal those without MTP, gradients of 19 MTP parameters are zero"
    assert {case: without[case] for case in ("zero", "labels")} == {case: with_us[case] for case in ("zero", "labels")}


@pytest.mark.real
@pytest.mark.parametrize("version", ["0.12.0", "0.13.1"])
def test_calls_of_every_kind(python, megatron_core, version):
    script = Path(__file__).with_name("mtp_block_inference_calls.py")
    done = python(script, overlays=[megatron_core(version)], check=0)
    result = json.loads(done.stdout.splitlines()[-1])

    assert not result["failed"], "\n".join(result["failed"].values())
    assert result["checks"] == 9
