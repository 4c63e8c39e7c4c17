"""Every hostile case is watched over by a guard that can be taken away; `nox -s guards` takes them away."""

import re

import pytest
from environments import ROOT
from hostile.remove_guards import GUARDS, HOSTILE, UNGUARDED


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard["why"])
def test_a_guard_stands_where_it_is_said_to_stand(guard):
    assert (ROOT / "src" / guard["file"]).read_text(encoding="utf-8").count(guard["text"]) == 1
    assert guard["instead"] != guard["text"]


def test_every_hostile_case_has_a_guard():
    named = {test for guard in GUARDS for test in guard["tests"]} | {*UNGUARDED}
    there = {
        f"{path.name}::{name}"
        for path in HOSTILE.glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert named == there
