"""verl's two patches and ours, in every order: all are called, none of ours twice, and doctor says who came when."""

import pytest

pytestmark = pytest.mark.real

ENGINE = "verl_stand_in.create_engine"
WRITER = "verl_stand_in.patch_writer"
CRASH = "AttributeError: 'NoneType' object has no attribute 'clone'"
EQUAL = "checkpoint read back equal, 7 entries"
PLACE = "megatron.core.models.gpt.gpt_model.GPTModel._postprocess"
#: Calls of a model in program.py.
CALLS = 9


def test_control_without_anybody_models_crash_without_labels(alone):
    crashed = {case for case, result in alone("0.16.1").items() if result == CRASH}
    assert crashed == {"0 eval", "0 train", "1 eval", "1 train"}


@pytest.mark.parametrize(
    ("version", "steps"),
    [
        ("0.16.0", [ENGINE]),
        ("0.16.1", [ENGINE, ENGINE]),
        ("0.16.1", [ENGINE, "install", ENGINE, "install"]),
    ],
)
def test_engines_wrap_our_patch_and_models_run_without_labels(beside, fixed, version, steps):
    run = beside(version, "models", *steps)

    engines = steps.count(ENGINE)
    assert run.results == fixed(version)
    assert run.layers == {"GPTModel._postprocess": ["verl_stand_in"] * engines + ["mtp_inference", "gpt_model"]}
    assert len(run.calls["verl_stand_in"]) == CALLS * engines
    assert run.outcomes["mtp-inference"] == "APPLIED"
    assert run.findings == [f"{PLACE} was replaced by verl_stand_in after patch mtp-inference was applied"]


@pytest.mark.parametrize("steps", [[ENGINE, "install"], [ENGINE, ENGINE, "install", ENGINE, "install"]])
def test_we_stand_back_where_an_engine_was_first(beside, steps):
    """What it wraps cannot be seen, so that the results are those without us."""
    run = beside("0.16.1", "models", "late", *steps)

    engines = steps.count(ENGINE)
    without_us = beside("0.16.1", "models", *[ENGINE] * engines, MCORE_AUTOPATCH=0)
    assert run.results == without_us.results
    assert {case for case, result in run.results.items() if result == CRASH} == {"1 eval", "1 train"}
    assert run.layers == without_us.layers == {"GPTModel._postprocess": ["verl_stand_in"] * engines + ["gpt_model"]}
    assert run.calls == without_us.calls
    assert run.outcomes["mtp-inference"] == "ALREADY_PATCHED"
    assert run.findings == [f"{PLACE} was replaced by verl_stand_in before patch mtp-inference could be applied"]


@pytest.mark.parametrize(
    "steps", [[WRITER], [WRITER, "install", WRITER, "install"], ["late", WRITER, "install"]], ids=" ".join
)
def test_checkpoints_are_written_by_verls_writer_or_by_ours_in_the_worker(beside, tmp_path, steps):
    run = beside("0.12.1", "checkpoints", *steps)

    assert run.results == dict.fromkeys(["sync", "async", "persistent"], EQUAL)
    assert run.layers["_write_item"] == ["serialization_format", "filesystem"]
    assert run.outcomes["serialization-format"] == "APPLIED"
    # Two buckets in two of the modes.
    assert len((tmp_path / "verl_stand_in.log").read_text().split()) == 4
    assert run.findings == []


def test_verls_writer_alone_does_not_reach_the_persistent_worker(beside, tmp_path):
    run = beside("0.12.1", "checkpoints", WRITER, MCORE_AUTOPATCH=0)

    assert "missing 1 required positional argument: 'serialization_format'" in run.results.pop("persistent")
    assert run.results == {"sync": EQUAL, "async": EQUAL}
    assert len((tmp_path / "verl_stand_in.log").read_text().split()) == 4
