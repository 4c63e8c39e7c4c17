"""MindSpeed's way to patch and ours, in every order: all are called, ours once, and doctor says what is lost."""

import pytest

pytestmark = pytest.mark.real

WRAP = "mindspeed_stand_in.wrap_postprocess"
REPATCH = "mindspeed_stand_in.repatch"
PRELOAD = "mindspeed_stand_in.replace_preload"
MODEL = "mindspeed_stand_in.replace_model"
DUMMY = "mindspeed_stand_in.dummy_of_a_target"
ENGINE = "verl_stand_in.create_engine"
THEIRS = ["mindspeed_stand_in"] * 2
OURS = ["mtp_inference"]
PLACE = "megatron.core.models.gpt.gpt_model.GPTModel._postprocess"
REPLACED_BY_VERL = f"{PLACE} was replaced by verl_stand_in after patch mtp-inference was applied"
WRITER = "megatron.core.dist_checkpointing.strategies.filesystem_async.FileSystemWriterAsync"


@pytest.mark.parametrize(
    ("steps", "layers", "findings"),
    [
        ([WRAP], [*THEIRS, *OURS], []),
        # They take what they found at first for the original, and that has our patch in it.
        ([WRAP, "install", REPATCH, "install"], [*THEIRS, *OURS], []),
        (["late", WRAP, "install", "install"], [*OURS, *THEIRS], []),
        ([WRAP, ENGINE, "install"], ["verl_stand_in", *THEIRS, *OURS], [REPLACED_BY_VERL]),
        ([ENGINE, WRAP, REPATCH, "install"], [*THEIRS, "verl_stand_in", *OURS], None),
    ],
    ids=["after us", "again", "before us", "and verl", "after verl"],
)
def test_wrappers_and_our_patch_are_all_called(beside, fixed, steps, layers, findings):
    run = beside("0.16.1", "models", *steps)

    assert run.results == fixed("0.16.1")
    assert run.layers == {"GPTModel._postprocess": [*layers, "gpt_model"]}
    # Each call of a model goes through both of their wrappers.
    assert run.calls["mindspeed_stand_in"] == ["second", "first"] * 9
    assert run.outcomes["mtp-inference"] == "APPLIED"
    # MindSpeed's importlib.metadata.version, which is wrong about everything, is not asked.
    if findings is not None:
        assert run.findings == findings


def test_repatch_drops_a_patch_that_came_later_and_doctor_says_so(beside, alone):
    run = beside("0.16.1", "models", "late", WRAP, "install", REPATCH)

    assert run.results == alone("0.16.1")
    assert run.layers == {"GPTModel._postprocess": [*THEIRS, "gpt_model"]}
    assert run.findings == [f"{PLACE} was replaced by mindspeed_stand_in after patch mtp-inference was applied"]


@pytest.mark.parametrize(
    ("steps", "outcome", "finding"),
    [
        ([PRELOAD, "install"], "APPLIED", "after patch preload-without-cuda was applied"),
        (["late", PRELOAD, "install"], "ALREADY_PATCHED", "before patch preload-without-cuda could be applied"),
    ],
    ids=["after us", "before us"],
)
def test_checkpoints_are_preloaded_by_mindspeed_and_a_trainer_is_told_that_it_does_not_pickle(
    beside, steps, outcome, finding
):
    run = beside("0.12.1", "checkpoints", *steps)

    # Without dead-checkpoint-worker this would never return.
    assert "PicklingError: Can't pickle <function preload_tensors" in run.results.pop("persistent")
    assert run.results == dict.fromkeys(["sync", "async"], "checkpoint read back equal, 7 entries")
    assert run.layers == {
        "_write_item": ["serialization_format", "filesystem"],
        "FileSystemWriterAsync.preload_tensors": ["mindspeed_stand_in"],
    }
    assert run.calls["mindspeed_stand_in"] == ["preload"] * 2
    assert run.outcomes["serialization-format"] == "APPLIED"
    assert run.outcomes["preload-without-cuda"] == outcome
    assert run.findings == [f"{WRITER}.preload_tensors was replaced by mindspeed_stand_in {finding}"]


def test_a_dummy_in_the_place_of_a_target_is_left_alone(beside):
    run = beside("0.16.1", "nothing", DUMMY, "install")

    assert run.outcomes["mtp-inference"] == run.outcomes["mtp-empty-loss-mask"] == "STAND_IN"
    assert "FAILED" not in run.outcomes.values()
    assert run.findings == []


@pytest.mark.parametrize("steps", [[MODEL, "install"], ["late", MODEL, "install", "install"]], ids=["after", "before"])
def test_a_class_in_the_place_of_gptmodel_has_our_patch_once(beside, fixed, steps):
    run = beside("0.16.1", "models", *steps)

    assert run.results == fixed("0.16.1")
    assert run.layers == {"GPTModel._postprocess": [*OURS, "gpt_model"]}
    assert run.calls["mindspeed_stand_in"] == ["class"] * 9
    assert run.outcomes["mtp-inference"] == "APPLIED"
    assert run.findings == []
