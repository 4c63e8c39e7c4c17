"""python -m mcore_autopatch.reproductions: names that are unknown, results that can be parsed, and no endless wait."""

import json
import multiprocessing
from types import SimpleNamespace

import pytest

from mcore_autopatch import catalogue
from mcore_autopatch.reproductions import _checkpoint

COMMAND = ("-m", "mcore_autopatch.reproductions")
FAKE = """
import os, sys, time
from mcore_autopatch.reproductions import __main__, mtp_inference
def good(): print("noise"); os.system("echo noise of a child"); return "fine"
def bad(): raise ValueError("wrong")
def endless(): time.sleep(60)
mtp_inference.CASES = {"good": good, "bad": bad, "endless": endless}
__main__.LIMIT = 1
sys.exit(__main__.main(["mtp-inference", *sys.argv[1:]]))
"""


def test_an_unknown_reproduction_is_one_line_with_the_nearest(python):
    done = python(*COMMAND, "mtp-infrence", check=2)

    assert (done.stdout, done.stderr) == ("", "there is no reproduction 'mtp-infrence'; did you mean mtp-inference?\n")


def test_an_unknown_case_is_one_line_with_the_nearest(python):
    done = python(*COMMAND, "mtp-inference", "eval", "trian", check=2)

    assert (done.stdout, done.stderr) == ("", "mtp-inference has no case 'trian'; did you mean train?\n")


def test_without_a_name_the_known_ones_are_told(python):
    done = python(*COMMAND, check=2)

    assert done.stderr.endswith(f"known ids: {', '.join(catalogue.load().patches)}\n")
    assert done.stderr.count("\n") == 1


def test_results_alone_are_on_stdout(python):
    done = python("-c", FAKE, check=1)

    common = {"id": "mtp-inference"}
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {**common, "case": "good", "ok": True, "detail": "fine"},
        {**common, "case": "bad", "ok": False, "error": "ValueError: wrong"},
        {**common, "case": "endless", "ok": False, "error": "TimeoutError: not finished after 1 seconds"},
    ]
    assert "noise\n" in done.stderr
    assert "noise of a child\n" in done.stderr
    assert "Traceback" in done.stderr


def test_named_cases_alone_are_run_and_success_is_zero(python):
    done = python("-c", FAKE, "good", check=0)

    assert json.loads(done.stdout)["case"] == "good"


def test_further_ranks_are_silent_but_count(python):
    assert python("-c", FAKE, "bad", check=1, RANK=1).stdout == ""


class Caller:
    process = None


def test_a_worker_whose_start_was_interrupted_is_given_up():
    """Otherwise megatron-core waits for it when the queue is collected, for ever."""
    caller = Caller()
    caller.process = multiprocessing.get_context("spawn").Process()
    with (
        pytest.raises(TimeoutError),
        _checkpoint.ended(SimpleNamespace(persistent_caller=caller, async_calls=[])),
    ):
        raise TimeoutError
    assert caller.process is None
