"""Rows against releases and devices, for the engine and for forecasts; versions that follow no rule are survived."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from mcore_autopatch.declaration import Affected, Device
from mcore_autopatch.errors import PatchDefinitionError
from mcore_autopatch.matching import Combination, match
from mcore_autopatch.outcome import SkipReason
from mcore_autopatch.patches.mtp_inference import patch


def here(megatron_core, torch, device):
    return Combination(megatron_core=megatron_core, torch=torch, device=device)


def test_without_a_device_the_row_for_any_device_is_named():
    row, reason, _ = match(patch, here("0.16.1", "2.13.0", None))
    assert (row.device, reason) == (None, None)
    only = patch.replace(affected=patch.affected[:1])
    assert match(only, here("0.16.1", "2.13.0", None))[0] == patch.affected[0]


@pytest.mark.parametrize(("device", "source"), [(Device.NPU, "verl#6374"), (Device.CUDA, "Megatron-LM#3297")])
def test_the_first_row_that_fits_the_device_is_named(device, source):
    assert match(patch, here("0.16.1", "2.13.0", device))[0].source == source


@given(st.none() | st.text(), st.none() | st.text(), st.sampled_from([*Device, None]))
def test_any_text_is_a_decision_with_a_reason_in_one_line(core, torch, device):
    row, reason, detail = match(patch, here(core, torch, device))
    assert (row is None) is (reason is not None)
    assert "\n" not in detail


VERSIONS = st.from_regex(
    r"0\.(9|1[0-9])(\.[0-3])?((a|b|rc)[0-9]|\.dev[0-9]|\.post[0-9])?(\+[a-z0-9]{1,8})?", fullmatch=True
)


@given(VERSIONS)
def test_pre_releases_and_local_builds_count_as_their_release(core):
    _, reason, _ = match(patch, here(core, "2.9.0a0+50eac811a6.nv25.09", Device.CPU))
    assert reason is (None if 14 <= Version(core).minor < 17 else SkipReason.MEGATRON_VERSION)


@given(st.text(max_size=12))
def test_a_specifier_is_taken_or_refused_and_never_crashes_later(specifier):
    try:
        row = Affected(megatron_core=specifier, source="x")
    except PatchDefinitionError:
        return
    match(patch.replace(affected=(row,)), here("0.16.1", "2.13.0", Device.CPU))
