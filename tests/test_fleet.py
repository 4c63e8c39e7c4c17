"""Reports of many processes, written at exit and compared."""

import json
import time
from pathlib import Path

import pytest

from mcore_autopatch import fleet

FAKE = Path(__file__).parent / "fake_megatron"
PREAMBLE = "from fake_patches import patch, use; use(patch())\nimport megatron.core.models.model\n"


def reports(folder):
    return sorted((json.loads(path.read_bytes()) for path in folder.glob("*.json")), key=lambda report: report["pid"])


def test_a_process_leaves_a_report_at_exit(python, tmp_path):
    target = tmp_path / "made" / "{host}-{rank}-{pid}.json"
    python("-c", PREAMBLE, overlays=[FAKE], check=0, MCORE_AUTOPATCH_REPORT=target, RANK=3, WORLD_SIZE=8)
    (report,) = reports(tmp_path / "made")
    assert (report["rank"], report["world_size"], report["schema"], report["hook"]) == (3, 8, 1, True)
    assert (report["megatron_core"], report["torch"], report["device"]) == ("0.16.1", "2.13.0+cpu", "cpu")
    assert [(outcome["patch"], outcome["status"]) for outcome in report["outcomes"]] == [("one", "applied")]
    (path,) = (tmp_path / "made").iterdir()
    assert path.name == f"{report['host']}-3-{report['pid']}.json"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_multiprocessing_leave_reports_too(python, tmp_path, method):
    script = tmp_path / "script.py"
    script.write_text(f"""
import multiprocessing
{PREAMBLE}
def child():
    pass
if __name__ == "__main__":
    process = multiprocessing.get_context({method!r}).Process(target=child)
    process.start()
    process.join()
    print(process.pid)
""")
    done = python(script, overlays=[FAKE], check=0, MCORE_AUTOPATCH_REPORT=tmp_path / "out" / "{pid}.json")
    written = reports(tmp_path / "out")
    assert int(done.stdout) in [report["pid"] for report in written]
    assert all(report["outcomes"][0]["status"] == "applied" for report in written)


def test_a_process_that_never_imports_megatron_leaves_none(python, tmp_path):
    python("-c", "import json", check=0, MCORE_AUTOPATCH_REPORT=tmp_path / "{pid}.json")
    assert reports(tmp_path) == []


@pytest.mark.parametrize("path", ["/proc/no/{pid}.json", "/dev/full/x", "{pid}\0.json", "/dev/null/x.json"])
def test_a_path_that_cannot_be_written_is_one_warning(python, tmp_path, path):
    if "\0" in path:
        code = f"import os; os.environ.__class__.get = lambda s, k, d=None: {path!r} if k.endswith('REPORT') else d\n"
    else:
        code = ""
    variables = {} if code else {"MCORE_AUTOPATCH_REPORT": path}
    done = python("-c", code + PREAMBLE + "print(1)", overlays=[FAKE], check=0, **variables)
    assert done.stdout == "1\n"
    assert done.stderr.startswith("mcore-autopatch: MCORE_AUTOPATCH_REPORT: cannot write ")
    assert done.stderr.count("\n") == 1


def test_a_device_or_pipe_is_written_to_and_not_replaced(python):
    done = python("-c", PREAMBLE, overlays=[FAKE], check=0, MCORE_AUTOPATCH_REPORT="/dev/stderr")
    assert json.loads(done.stderr)["outcomes"][0]["status"] == "applied"


def test_a_relative_path_is_that_of_the_start(python, tmp_path):
    code = PREAMBLE + "import os; os.mkdir('other'); os.chdir('other')"
    python("-c", code, overlays=[FAKE], check=0, MCORE_AUTOPATCH_REPORT="here.json")
    assert (tmp_path / "here.json").is_file()


def report(rank, *, world_size=4, pid=None, status="applied", reason=None, **fields):
    outcome = {"patch": "one", "status": status, "reason": reason}
    given = {"schema": 1, "mcore_autopatch": "0.1.0", "host": f"host{rank // 8}", "pid": pid or rank, "rank": rank}
    given |= {
        "world_size": world_size,
        "python": "3.11.7",
        "megatron_core": "0.12.1",
        "torch": "2.8.0",
        "device": "npu",
    }
    return {**given, "switches": {}, "outcomes": [outcome], **fields}


def folder_of(tmp_path, *written):
    for number, each in enumerate(written):
        (tmp_path / f"{number}.json").write_text(json.dumps(each) if isinstance(each, dict) else each)
    return fleet.Summary(tmp_path)


def test_equal_reports_agree(tmp_path):
    summary = folder_of(tmp_path, *(report(rank) for rank in range(4)))
    assert summary.agrees
    assert summary.counts["one"] == {"applied": 4}


def test_a_patch_that_waits_in_a_worker_is_no_difference(tmp_path):
    workers = [report(rank, pid=100 + rank, status="waiting", device=None) for rank in range(4)]
    assert folder_of(tmp_path, *(report(rank) for rank in range(4)), *workers).agrees


def test_the_rank_that_differs_is_named(tmp_path):
    odd = report(2, status="skipped", reason="switched off")
    summary = folder_of(tmp_path, report(0), report(1), odd, report(3, torch="2.9.0"))
    assert not summary.agrees
    assert {(r["rank"], *rest) for r, *rest in summary.differing()} == {
        (2, "one", "skipped (switched off)", "applied"),
        (3, "torch", "2.9.0", "2.8.0"),
    }


def test_a_rank_without_a_report_is_missing(tmp_path):
    assert folder_of(tmp_path, report(0), report(3)).missing == [1, 2]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"schema": 2}', '{"schema": 1}', "\ud83d"])
def test_a_file_that_is_no_report_is_named_and_the_others_are_read(tmp_path, text):
    (tmp_path / "bad.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    summary = folder_of(tmp_path, *(report(rank) for rank in range(4)))
    assert list(summary.unreadable) == [str(tmp_path / "bad.json")]
    assert len(summary.reports) == 4
    assert not summary.agrees


def test_ten_thousand_reports_cost_no_more_than_a_few_times_their_parsing(tmp_path):
    text = json.dumps(report(0, world_size=1))
    for number in range(10_000):
        (tmp_path / f"{number}.json").write_text(text)
    started = time.process_time()
    for path in tmp_path.iterdir():
        json.loads(path.read_bytes())
    parsing = time.process_time() - started
    started = time.process_time()
    assert fleet.Summary(tmp_path).agrees
    assert time.process_time() - started < 10 * parsing
