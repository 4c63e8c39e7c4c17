"""Environment variables, however they are written."""

from hypothesis import given
from hypothesis import strategies as st

from mcore_autopatch.patches.mtp_inference import patch
from mcore_autopatch.switches import Switches

NAMES = ["", "_VERBOSE", "_DISABLE", "_ONLY", "_FORCE", "_ENABLE", "_STRICT"]


def test_nothing_set_means_everything_on():
    assert Switches.read({}) == Switches()


def test_each_variable_is_read():
    environ = {"VERBOSE": "2", "DISABLE": "a, B", "ONLY": "c", "FORCE": "d,,", "ENABLE": "e", "STRICT": "yes"}
    switches = Switches.read({f"MCORE_AUTOPATCH_{name}": value for name, value in environ.items()})
    assert switches == Switches(verbose=2, disable=("a", "b"), only=("c",), force=("d",), enable=("e",), strict=True)
    assert set(switches.named()) == {"a", "b", "c", "d", "e"}


def test_verbose_takes_words_and_reports_numbers_it_does_not_know():
    assert Switches.read({"MCORE_AUTOPATCH_VERBOSE": "true"}).verbose == 1
    switches = Switches.read({"MCORE_AUTOPATCH_VERBOSE": "3"})
    assert switches.verbose == 2
    assert switches.problems == ("MCORE_AUTOPATCH_VERBOSE='3' is not 0, 1 or 2; taken as 2",)


def test_a_variable_that_is_misspelt_is_named_with_the_nearest():
    switches = Switches.read({"MCORE_AUTOPATCH_DISABEL": "x", "MCORE_AUTOPATCHING": "y", "MCORE_AUTO": "z"})
    assert switches.problems == (
        "'MCORE_AUTOPATCH_DISABEL' is no switch; did you mean MCORE_AUTOPATCH_DISABLE?",
        "'MCORE_AUTOPATCHING' is no switch; did you mean MCORE_AUTOPATCH?",
    )


@given(st.dictionaries(st.sampled_from([f"MCORE_AUTOPATCH{name}" for name in NAMES]), st.text()))
def test_no_value_is_an_error_and_problems_are_one_short_printable_line_each(environ):
    switches = Switches.read(environ)
    assert all(problem.isascii() and "\n" not in problem and len(problem) < 600 for problem in switches.problems)
    assert isinstance(switches.leaves_out(patch), str)
