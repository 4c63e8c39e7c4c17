"""ROLL, slime and verl's fused forward replace _postprocess on a model; what is in its class is ours."""

import pytest

pytestmark = pytest.mark.real

WRAP = "roll_stand_in.wrap"
REPLACE = "roll_stand_in.replace"
ENGINE = "verl_stand_in.create_engine"


@pytest.mark.parametrize("steps", [[WRAP], ["late", "install", WRAP, WRAP, "install"]], ids=" ".join)
def test_what_wraps_the_method_of_a_model_calls_ours(beside, fixed, steps):
    run = beside("0.16.1", "models", *steps)

    assert run.results == fixed("0.16.1")
    assert run.layers == {"GPTModel._postprocess": ["mtp_inference", "gpt_model"]}
    assert run.calls["roll_stand_in"] == ["instance"] * 9 * steps.count(WRAP)


@pytest.mark.parametrize("steps", [[REPLACE], [ENGINE, REPLACE, "install"]], ids=" ".join)
def test_what_replaces_the_method_of_a_model_has_the_same_results_as_without_us(beside, steps):
    run = beside("0.16.1", "models", *steps)

    without_us = beside("0.16.1", "models", REPLACE, MCORE_AUTOPATCH=0)
    assert run.results == without_us.results
    assert not any("Error" in result for result in run.results.values())
    assert run.calls["roll_stand_in"] == ["instance"] * 9
    assert run.layers["GPTModel._postprocess"][-2:] == ["mtp_inference", "gpt_model"]
