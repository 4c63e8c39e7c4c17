"""mtp-inference: a model with multi-token prediction runs without labels, and nothing else changes."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from mcore_autopatch.patches import mtp_inference

ID = "mtp-inference"
#: Release -> what becomes of the patch there. A release that is not named must be SKIPPED.
EXPECTED = {
    "0.13.1": "SKIPPED MEGATRON_VERSION",
    **dict.fromkeys(["0.14.0", "0.15.0", "0.15.1", "0.15.2", "0.15.3", "0.16.0", "0.16.1"], "APPLIED"),
    "0.17.0": "SKIPPED MEGATRON_VERSION",
}
HERE = Path(__file__).parent
CRASH = "AttributeError: 'NoneType' object has no attribute 'clone'"
#: megatron-core release -> the cases of the reproduction that crash without us.
CRASHES = {
    "0.14.0": {"eval", "train"},
    "0.15.3": {"eval", "train"},
    "0.16.0": {"eval", "train", "zero"},
    "0.16.1": {"eval", "train", "zero"},
}
LOGITS = "logits (2, 8, 64) equal those without MTP"


class Fixed:
    def _postprocess(self, labels):
        if self.config.mtp_num_layers:
            self.process_mtp_loss(labels)


class FixedByCondition:
    def _postprocess(self, labels):
        if self.config.mtp_num_layers is not None and labels is not None:
            self.mtp_labels = labels.clone()


class FixedInside:
    def _postprocess(self, labels):
        if self.config.mtp_num_layers is not None:
            self.chunks = 2
            if labels is not None:
                self.mtp_labels = labels.clone()


class ByBlock:
    def _postprocess(self, labels):
        if self.mtp_process:
            self.mtp_labels = labels.clone()


class ByConfig:
    def _postprocess(self, labels):
        if self.config.mtp_num_layers is not None:
            self.mtp_labels = labels.clone()


@pytest.mark.parametrize("model", [Fixed, FixedByCondition, FixedInside])
def test_does_nothing_where_the_labels_are_looked_at(model):
    assert not mtp_inference.probe(SimpleNamespace(GPTModel=model))


@pytest.mark.parametrize("model", [ByBlock, ByConfig])
def test_sees_the_bug_in_the_code(model):
    assert mtp_inference.probe(SimpleNamespace(GPTModel=model))


def test_a_code_that_cannot_be_read_is_an_error_rather_than_a_bug():
    with pytest.raises(TypeError):
        mtp_inference.probe(SimpleNamespace(GPTModel=SimpleNamespace(_postprocess=len)))


@pytest.mark.real
def test_does_nothing_on_a_release_without_the_bug(outcome):
    assert outcome("0.17.1", ID) == ("SKIPPED", "MEGATRON_VERSION")


@pytest.mark.real
def test_the_probe_has_the_last_word_on_a_forced_patch(outcome):
    assert outcome("0.17.1", ID, MCORE_AUTOPATCH_FORCE=ID) == ("SKIPPED", "BUG_ABSENT")


@pytest.mark.real
@pytest.mark.parametrize("version", CRASHES)
def test_nothing_changes_with_labels_or_without_mtp(python, megatron_core, version):
    """Losses, logits and gradients are those of a run without us, bit for bit."""
    digests = []
    for switch in ("0", "1"):
        script = HERE / "mtp_inference_digests.py"
        done = python(script, overlays=[megatron_core(version)], check=0, MCORE_AUTOPATCH=switch)
        digests.append(json.loads(done.stdout.splitlines()[-1]))

    without, with_us = digests
    assert (without.pop("patched"), with_us.pop("patched")) == (False, True)
    assert len(set(without.values())) == len(without), "results that should differ do not"
    assert with_us == without


@pytest.mark.real
@pytest.mark.parametrize("version", [*CRASHES, "0.17.1"])
def test_logits_are_those_of_the_model_without_mtp(reproduce, version):
    results = reproduce(version, ID, check=0)

    assert results.pop("labels").endswith(" 47 gradients are finite")
    assert results == {
        "eval": LOGITS,
        "train": "logits equal those without MTP, gradients of 19 MTP parameters are zero",
        "zero": LOGITS,
    }


@pytest.mark.real
@pytest.mark.parametrize("version", CRASHES)
def test_without_us_it_crashes(reproduce, version):
    results = reproduce(version, ID, check=1, MCORE_AUTOPATCH=0)

    assert {case for case, result in results.items() if result == CRASH} == CRASHES[version]
    assert results["labels"].endswith(" 47 gradients are finite")


@pytest.mark.real
@pytest.mark.parametrize("version", ["0.14.0", "0.16.1"])
def test_calls_of_every_kind(python, megatron_core, version):
    done = python(HERE / "mtp_inference_calls.py", overlays=[megatron_core(version)], check=0)
    result = json.loads(done.stdout.splitlines()[-1])

    assert not result["failed"], "\n".join(result["failed"].values())
    assert result["checks"] == 20


@pytest.mark.real
def test_a_pipeline_of_two_stages(python, megatron_core, torchrun):
    """Wherever the MTP layers are, on a stage before the last (new in 0.16), on the last, or on none."""
    done = python(*torchrun, HERE / "mtp_inference_pipeline.py", overlays=[megatron_core("0.16.1")], check=0)

    layouts = ("default", "MTP on the last stage", "MTP on the stage before", "MTP on no stage")
    assert json.loads(done.stdout.splitlines()[-1]) == {layout: [True, True] for layout in layouts}
