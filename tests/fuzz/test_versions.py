"""Any text or object in the place of a version: a decision, and the one that the release segment asks for."""

import operator
import sys
from types import ModuleType

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from packaging.version import InvalidVersion, Version

from mcore_autopatch import installed
from mcore_autopatch.declaration import Affected, Device
from mcore_autopatch.matching import Combination, match
from mcore_autopatch.outcome import Outcome, SkipReason, Status
from mcore_autopatch.patches.mtp_inference import patch

fuzz = settings.get_profile("fuzz")

numbers = st.integers(0, 30) | st.integers(0, 10**30)
releases = st.lists(numbers, min_size=1, max_size=5).map(tuple)
#: What may follow the release segment.
suffixes = (
    st.lists(
        st.from_regex(r"[-_.]?(a|b|c|rc|alpha|beta|pre|preview)[-_.]?[0-9]{0,3}", fullmatch=True) | st.just(""),
        max_size=1,
    ).map("".join),
    st.sampled_from(["", ".post1", "-1", "rev2", ".post"]),
    st.sampled_from(["", ".dev0", "dev", "_dev12"]),
)
local = st.just("") | st.from_regex(r"\+[a-z0-9]{1,8}([-_.][a-zA-Z0-9]{1,8}){0,2}", fullmatch=True)


@st.composite
def stated(draw):
    """Draw a version by PEP 440, as text, and its release segment, which comes from no parser."""
    release = draw(releases)
    text = ".".join(f"{'0' * draw(st.integers(0, 2))}{number}" for number in release)
    text += "".join(map(draw, suffixes)) + draw(local)
    space = st.sampled_from(["", " ", "\n", "\t"])
    text = draw(st.sampled_from([str, str.upper]))(draw(st.sampled_from(["", "v"])) + text)
    return draw(space) + text + draw(space), release


def padded(left, right):
    length = max(len(left), len(right))
    return [(*release, *[0] * (length - len(release))) for release in (left, right)]


OPERATORS = {
    ">=": operator.ge,
    "<=": operator.le,
    "<": operator.lt,
    ">": operator.gt,
    "==": operator.eq,
    "!=": operator.ne,
}
rows = st.lists(st.tuples(st.sampled_from(list(OPERATORS)), releases), min_size=1, max_size=3)


def holds(clauses, release):
    return all(OPERATORS[sign](*padded(release, bound)) for sign, bound in clauses)


def written(clauses):
    return ",".join(f"{sign}{'.'.join(map(str, bound))}" for sign, bound in clauses)


def decide(megatron_core, torch, device=None, *, row=None):
    """Return row and reason after checking that there is one of them, and a detail that can be shown."""
    here = Combination(megatron_core=megatron_core, torch=torch, device=device)
    row, reason, detail = match(patch if row is None else patch.replace(affected=(row,)), here)
    assert (row is None) is (reason is not None)
    assert detail
    shown = Outcome(patch="x", status=Status.SKIPPED, reason=reason, detail=detail).detail
    assert shown.isprintable() and len(shown) < 5000
    return row, reason


@fuzz
@given(stated(), stated(), rows, rows)
@example(("2.9.0a0+50eac811a6.nv25.09", (2, 9, 0)), ("0.12.0rc3", (0, 12, 0)), [(">=", (2, 9))], [("<", (0, 12))])
def test_versions_are_compared_by_release_segment(core, torch, core_row, torch_row):
    assume(len(written(core_row)) <= 256 and len(written(torch_row)) <= 256)
    row = Affected(megatron_core=written(core_row), torch=written(torch_row), source="x")
    _, reason = decide(core[0], torch[0], row=row)
    if not holds(core_row, core[1]):
        assert reason is SkipReason.MEGATRON_VERSION
    elif not holds(torch_row, torch[1]):
        assert reason is SkipReason.TORCH_VERSION
    else:
        assert reason is None


def as_packaging_reads(text):
    try:
        return Version(text)
    except ValueError:  # InvalidVersion, or a number of too many digits
        assert issubclass(InvalidVersion, ValueError)
        return None


garbage = (
    st.text()
    | st.text("0123456789.+-_abcdevrcpostnv!*٣２ \n\udcff\x00", max_size=40)
    | st.integers(1, 6000).map(lambda digits: f"0.{'1' * digits}")
    | st.integers(1, 3000).map(lambda parts: f"0{'.1' * parts}")
)


@fuzz
@given(garbage, garbage, st.sampled_from([*Device, None]))
@example(f"0.{'1' * 5000}", "2.9", None)
@example("0.16", "1" * 5000, None)
@example("\u0660.\u0661\u0666", "2.9", Device.NPU)
@example("0.16\udc80", "2.9", Device.NPU)
def test_garbage_is_unreadable_exactly_where_packaging_refuses_it(core, torch, device):
    row = Affected(megatron_core=">=0", torch=">=0", source="x")
    _, reason = decide(core, torch, device, row=row)
    readable = as_packaging_reads(core) and as_packaging_reads(torch)
    assert reason is (None if readable else SkipReason.VERSION_UNREADABLE)


things = (
    st.none() | st.integers() | st.floats() | st.binary() | st.lists(st.text()) | st.builds(object) | st.just(Version)
)


@fuzz
@given(things | garbage, things, st.sampled_from([*Device, None]))
@example("0.16.1", 3, Device.CPU)
def test_objects_in_place_of_texts_are_unreadable(core, torch, device):
    row = Affected(megatron_core=">=0", torch=">=0", source="x")
    assert decide(core, torch, device, row=row)[1] is SkipReason.VERSION_UNREADABLE


@fuzz
@given(things | garbage | stated().map(lambda pair: pair[0]))
@example("0.16.1\n")
@example(f"0.{'1' * 5000}")
def test_whatever_a_module_states_is_a_text_without_space_around_it(version):
    module = ModuleType("torch")
    module.__version__ = version
    before = sys.modules.get("torch")
    sys.modules["torch"] = module
    try:
        text = installed.torch()
    finally:
        del sys.modules["torch"]
        if before is not None:
            sys.modules["torch"] = before
    assert (text is None) is (version is None)
    assert text is None or text == str(version).strip()
    parsed = None if text is None else as_packaging_reads(text)
    assert installed.parsed(text) == parsed
    assert parsed is None or text.isprintable()
