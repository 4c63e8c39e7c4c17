"""Folders of damaged reports: summarize names each file that it cannot use, and counts all others."""

import contextlib
import copy
import io
import json
import os
import signal
import tempfile
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mcore_autopatch import cli, fleet, snapshot

fuzz = settings.get_profile("fuzz")


def report(rank=0):
    outcomes = [{"patch": "one", "status": "applied", "reason": None}]
    outcomes.append({"patch": "two", "status": "skipped", "reason": "bug absent"})
    told = {"schema": 1, "mcore_autopatch": "0.1.0", "host": "host", "pid": 10 + rank, "rank": rank, "world_size": 2}
    told |= {"python": "3.11.7", "megatron_core": "0.12.1", "torch": "2.8.0", "device": "npu"}
    return {**told, "switches": {"MCORE_AUTOPATCH_VERBOSE": "1"}, "outcomes": outcomes}


GOOD = json.dumps(report()).encode()


def summarized(damaged):
    """Return the JSON that summarize prints for one report that is whole and others, after checking its text."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "whole.json").write_bytes(json.dumps(report(1)).encode())
        for number, content in enumerate(damaged):
            (folder / f"damaged{number}.json").write_bytes(content)
        told = run("summarize", name, "--json")
        summary = json.loads(told)
        assert summary["reports"] + len(summary["unreadable"]) == len(damaged) + 1
        assert str(folder / "whole.json") not in summary["unreadable"]
        text = run("summarize", name)
        assert all(char.isprintable() or char == "\n" for char in text)
        assert text.endswith(("all agree\n", "they do not agree\n"))
        for path, why in summary["unreadable"].items():
            assert why and why.isprintable()
            assert Path(path).name in text
        assert not (summary["agrees"] and summary["unreadable"])
        assert len(summary["missing_ranks"]) < snapshot.TOO_MANY
    return summary


def run(*arguments):
    # As on a real stdout, a lone surrogate cannot be written.
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict", write_through=True)
    stderr = io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        code = cli.main(arguments)
    assert code in (0, 1) and stderr.getvalue() == "", stderr.getvalue()
    return stdout.buffer.getvalue().decode()


@fuzz
@given(st.lists(st.integers(0, len(GOOD) - 1), min_size=1, max_size=5))
@example([0])
def test_a_report_that_is_cut_off_anywhere_is_named(lengths):
    summary = summarized([GOOD[:length] for length in lengths])
    assert len(summary["unreadable"]) == len(lengths)


@fuzz
@given(
    st.lists(
        st.binary(max_size=200)
        | st.tuples(st.integers(0, len(GOOD)), st.binary(min_size=1, max_size=6)).map(
            lambda cut: GOOD[: cut[0]] + cut[1] + GOOD[cut[0] + 1 :]
        ),
        max_size=4,
    )
)
@example([b"[" * 100_000])
@example([b'{"schema":' * 50_000])
@example([b"1" * 5000])
@example([b"\xff\xfe", b"", b"\xef\xbb\xbf{}", b"NaN"])
def test_bytes_that_are_damaged_cost_no_more_than_their_file(damaged):
    summarized(damaged)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**18, -1, 10**6, 2**63])
    | st.floats()
    | st.text()
    | st.sampled_from(["\ud800", "\x1b[31mred", "a\nb", "x" * 10_000, ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def places(value, path=()):
    yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


PLACES = [path for path in places(report()) if path]


def changed(changes):
    told = report()
    for path, value in changes:
        place = told
        with contextlib.suppress(LookupError, TypeError):  # an earlier change took the place away
            for key in path[:-1]:
                place = place[key]
            if value is ...:
                del place[path[-1]]
            else:
                place[path[-1]] = copy.deepcopy(value)
    return json.dumps(told).encode()


@fuzz
@given(
    st.lists(st.lists(st.tuples(st.sampled_from(PLACES), values | st.just(...)), min_size=1, max_size=3), max_size=3)
)
@example([[(("world_size",), 10**7)]])
@example([[(("rank",), [])]])
@example([[(("rank",), -1)]])
@example([[(("host",), {})]])
@example([[(("host",), "\ud800\x1b[31m")]])
@example([[(("switches",), [])]])
@example([[(("switches", "MCORE_AUTOPATCH_VERBOSE"), [])]])
@example([[(("switches", "MCORE_AUTOPATCH_VERBOSE"), "\ud800\n"), (("torch",), "x\x1b")]])
@example([[(("outcomes", 0), 3)]])
@example([[(("outcomes", 0, "patch"), None)]])
@example([[(("outcomes", 0, "status"), {})]])
@example([[(("pid",), {})]])
def test_a_wrong_type_in_any_place_costs_no_more_than_its_file(damaged):
    summarized([changed(changes) for changes in damaged])


@fuzz
@given(st.integers() | st.text() | st.none() | st.floats(), st.integers(0, 3))
def test_reports_of_another_schema_are_named_beside_those_of_ours(schema, count):
    other = json.dumps({**report(), "schema": schema}).encode()
    summary = summarized([other] + [GOOD] * count)
    assert summary["reports"] == count + 1 + (schema == 1)


@fuzz
@given(st.sampled_from(sorted(report())), values)
def test_of_a_key_that_is_there_twice_the_last_counts(key, value):
    text = f"{{{json.dumps(key)}: {json.dumps(value)}, {GOOD.decode()[1:]}"
    assert summarized([text.encode()])["unreadable"] == {}


numbers = st.text(max_size=8) | st.integers().map(str) | st.integers(1, 6000).map("9".__mul__)
# What an environment can hold.
strings = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=50)
escaped = st.binary(max_size=20).map(lambda value: value.replace(b"\0", b"").decode("utf-8", "surrogateescape"))


@fuzz
@given(
    numbers.filter(lambda text: "\0" not in text).map(lambda text: text.encode("utf-8", "replace").decode()),
    numbers.filter(lambda text: "\0" not in text).map(lambda text: text.encode("utf-8", "replace").decode()),
    strings | escaped,
)
@example("9" * 5000, "9" * 5000, "")
@example("٣", "²", "\udcff\x1b\n")
def test_whatever_the_environment_the_report_that_we_write_can_be_read(rank, world_size, switch):
    variables = {"RANK": rank, "WORLD_SIZE": world_size, "MCORE_AUTOPATCH_DISABLE": switch}
    with mock.patch.dict(os.environ, variables), tempfile.TemporaryDirectory() as name:
        path = Path(name, "report.json")
        path.write_text(json.dumps(snapshot.document()))
        summary = fleet.Summary(Path(name))
        assert summary.unreadable == {}
        assert summary.reports[0]["switches"]["MCORE_AUTOPATCH_DISABLE"] == switch


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no such pipes")
def test_a_pipe_or_a_folder_of_the_name_of_a_report_is_named_and_not_waited_for(tmp_path):
    def ring(*_):
        raise TimeoutError

    (tmp_path / "folder.json").mkdir()
    (tmp_path / "whole.json").write_bytes(GOOD)
    os.mkfifo(tmp_path / "pipe.json")
    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(20)  # whoever reads a pipe that nobody writes to waits for ever
    try:
        summary = fleet.Summary(tmp_path)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert "TimeoutError" not in " ".join(summary.unreadable.values())
    assert len(summary.reports) == 1
    assert {Path(path).name for path in summary.unreadable} == {path.name for path in tmp_path.iterdir()} - {
        "whole.json"
    }
