"""docs/matrix.json has every cell, says what the tables of the patches' tests say, and is what the picture shows."""

import pytest
from environments import releases
from matrix import run
from test_contracts import expected

CELLS = {(cell["environment"], cell["megatron-core"], cell["patch"]): cell for cell in run.read()["cells"]}


def test_has_every_release_in_every_environment_that_it_is_tested_in():
    wanted = {
        (environment, release, patch)
        for environment in releases()["environments"]
        for release, told in releases()["releases"].items()
        if environment in told["environments"]
        for patch in run.patches_of(environment)
    }
    assert set(CELLS) == wanted


def test_no_patch_harms_or_fails_to_help():
    assert [cell for cell in CELLS.values() if cell["outcome"] in run.BAD] == []


def test_the_cells_that_the_project_began_with_are_marked_and_fixed():
    marked = {place: cell["outcome"] for place, cell in CELLS.items() if "seed" in cell}
    assert marked == dict.fromkeys(run.SEEDS, "fixed")


@pytest.mark.parametrize("patch", run.PATCHES)
def test_a_patch_is_applied_where_its_table_says_so(patch):
    for environment, release, of in CELLS:
        if of == patch:
            applied = expected(patch, release) == "APPLIED"
            cell = CELLS[environment, release, patch]
            if run.PATCHES[patch].opt_in:  # the measurement asks for it, and the table does not
                applied = cell["patch status"] == "applied"
            assert (cell["patch status"] == "applied") == applied, cell
            assert (cell["outcome"] == "fixed") == applied, cell


@pytest.mark.parametrize(
    ("without", "with_us", "status", "outcome"),
    [
        (True, True, "skipped", "not affected"),
        (False, True, "applied", "fixed"),
        (False, True, "skipped", "another bug"),
        (False, False, "skipped", "cannot run"),
        (False, False, "applied", "NOT FIXED"),
        (True, False, "applied", "HARMED"),
        (True, False, "skipped", "HARMED"),
    ],
)
def test_what_a_cell_is_called(without, with_us, status, outcome):
    without, with_us = (
        {"cases": {"one": {"ok": ok, "said": "text"}}, "outcome": status, "applied": []} for ok in (without, with_us)
    )
    assert run._cell("torch-2.13.0", "0.12.0", "mtp-inference", without, with_us)["outcome"] == outcome


def test_the_picture_shows_these_cells():
    assert run.stamp() in run.PICTURE.read_text(), "run `python -m matrix.draw` in tests, or nox -s matrix"


def test_a_message_holds_nothing_of_the_machine_or_the_run():
    assert run._plain("OSError: no /tmp/tmp1/x y, see http://a.b/c/d\nmore") == "OSError: no x y, see http://a.b/c/d"


def test_what_is_not_measured_here_stays_as_it_stands(tmp_path, monkeypatch):
    copy = tmp_path / "matrix.json"
    copy.write_bytes(run.MATRIX.read_bytes())
    monkeypatch.setattr(run, "MATRIX", copy)
    monkeypatch.setattr(run, "STORE", tmp_path)
    run.write()
    assert copy.read_bytes() == run.ROOT.joinpath("docs", "matrix.json").read_bytes()


def test_every_cell_is_one_line():
    lines = run.MATRIX.read_text().splitlines()
    assert sum(line.startswith('{"environment"') for line in lines) == len(CELLS)
