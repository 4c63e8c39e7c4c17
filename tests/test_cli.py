"""The command line as a user meets it: a subprocess, its output and its exit code."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from environments import ROOT, pip_install

from mcore_autopatch import catalogue

FAKE = Path(__file__).parent / "fake_megatron"
PATCHES = catalogue.load().patches


@pytest.fixture
def cli(python):
    def run(*arguments, check=0, overlays=(), **variables):
        return python("-m", "mcore_autopatch", *arguments, check=check, overlays=overlays, **variables)

    return run


@pytest.fixture
def doctor(python):
    """Return a function: run doctor with an interpreter, return its findings as text."""

    def run(interpreter, *arguments, check=1, options=(), **variables):
        command = [*options, "-m", "mcore_autopatch", "doctor", *arguments]
        return python(*command, executable=interpreter, check=check, **variables).stdout

    return run


def test_list_shows_every_patch_without_importing_torch(python):
    code = "import sys; from mcore_autopatch.cli import main; main(['list']); print('torch' in sys.modules, end='')"
    listed = python("-c", code, check=0).stdout
    assert listed.endswith("False")
    for patch in PATCHES.values():
        assert patch.id in listed.splitlines()
        assert patch.upstream in listed
    assert "off unless" in listed or not any(patch.opt_in for patch in PATCHES.values())


def test_list_shows_the_state_of_the_switch(cli):
    listed = cli("list", MCORE_AUTOPATCH_DISABLE="mtp-inference").stdout
    assert "off (listed in MCORE_AUTOPATCH_DISABLE)" in listed


@pytest.mark.parametrize("patch", PATCHES.values(), ids=PATCHES)
def test_explain_tells_all_that_the_declaration_says(cli, patch):
    told = cli("explain", patch.id).stdout
    # Unbroken, for whoever compares or searches.
    assert {f"    {error}" for error in patch.errors} <= set(told.splitlines())
    text = " ".join(told.split())
    for part in (patch.title, patch.symptom, patch.cause, patch.effect, patch.upstream, *map(str, patch.affected)):
        assert " ".join(part.split()) in text


def test_output_fits_eighty_columns_and_has_no_colour_in_a_pipe(cli):
    for arguments in (["list"], ["explain", "mtp-inference"], ["--help"], ["status", "--static"]):
        done = cli(*arguments, COLUMNS=80)
        assert "\033" not in done.stdout
        assert max(len(line) for line in done.stdout.splitlines() if "http" not in line) <= 80


@pytest.mark.parametrize("command", ["explain", "verify"])
def test_an_unknown_id_names_the_nearest_one_and_exits_with_2(cli, command):
    done = cli(command, "mtp-inferense", check=2)
    assert (done.stdout, done.stderr) == (
        "",
        "mcore-autopatch: error: there is no patch 'mtp-inferense'; did you mean mtp-inference?\n",
    )


@pytest.mark.parametrize("arguments", [["explain"], ["nonsense"], ["summarize", "/nonexistent"], ["--nonsense"]])
def test_errors_are_on_stderr_with_exit_code_2(cli, arguments):
    done = cli(*arguments, check=2)
    assert done.stdout == ""
    assert "error: " in done.stderr


def test_the_console_script_and_the_module_are_the_same(python, installed):
    script = installed.parent / "mcore-autopatch"
    one = python("--version", executable=script, check=0).stdout
    assert one == python("-m", "mcore_autopatch", "--version", executable=installed, check=0).stdout
    assert re.fullmatch(r"mcore-autopatch \d+\.\d+\.\d+\n", one)


def test_help_has_examples_that_parse(cli):
    text = cli("--help").stdout
    examples = [line.split("  ") for line in text.partition("examples:")[2].splitlines() if line.strip()]
    assert len(examples) >= 5
    for words in examples:
        (command, *_) = [word for word in words if word.startswith("mcore-autopatch")]
        assert command.split()[1:2] == [] or command.split()[1] in text.partition("examples:")[0]


def test_a_reader_that_goes_away_is_no_error(python, installed):
    pipe = f"{installed} -m mcore_autopatch list | head -n 1"
    done = python("-c", pipe, executable="/bin/sh", check=0)
    assert done.stderr == ""


def test_status_without_megatron(python, installed):
    told = python("-m", "mcore_autopatch", executable=installed, check=0).stdout
    assert told.startswith("hook:           active\nmegatron-core:  not loaded\n")
    assert "There is no megatron-core in this environment, and so nothing to patch." in told
    assert "cannot be imported" not in told


def test_status_switched_off(cli):
    assert cli("status", MCORE_AUTOPATCH=0).stdout.startswith(
        "hook:           not active: switched off by MCORE_AUTOPATCH=0"
    )


def test_a_static_status_imports_nothing_heavy_and_says_that_it_is_a_forecast(python, megatron_core):
    code = """
import sys
from mcore_autopatch.cli import main
main(["status", "--static"])
print(*(name for name in ("torch", "megatron", "wrapt") if name in sys.modules), end="")
"""
    told = python("-c", code, overlays=[megatron_core("0.12.1")], check=0).stdout
    assert "serialization-format: expected" in told
    assert "mtp-inference: skipped (megatron-core version)" in told
    assert "forecast" in told
    assert told.endswith("\n")


def test_static_status_as_json_is_marked(cli, megatron_core):
    told = json.loads(cli("status", "--static", "--json", overlays=[megatron_core("0.16.1")]).stdout)
    assert told["forecast"] is True
    assert told["schema"] == 1
    assert {outcome["patch"] for outcome in told["outcomes"]} == set(PATCHES)


@pytest.mark.real
def test_status_shows_rows_and_reasons(cli, megatron_core):
    told = cli("status", overlays=[megatron_core("0.16.1")]).stdout
    assert "hook:           active\nmegatron-core:  0.16.1\ntorch:          2." in told
    assert "mtp-inference: applied\n" in told
    assert "Megatron-LM#3297" in told
    assert "serialization-format: skipped (megatron-core version)" in told
    assert json.loads(cli("status", "--json", overlays=[megatron_core("0.16.1")]).stdout)["device"] == "cpu"


@pytest.mark.real
@pytest.mark.parametrize(
    ("version", "patch", "error"),
    [
        ("0.12.1", "serialization-format", "missing 1 required positional argument"),
        ("0.16.1", "mtp-inference", "'NoneType' object has no attribute 'clone'"),
    ],
)
def test_verify_shows_the_failure_without_us_and_success_with_us(cli, megatron_core, version, patch, error):
    told = json.loads(cli("verify", patch, "--json", overlays=[megatron_core(version)]).stdout)
    assert {verdict["verdict"] for verdict in told} <= {"fixed", "unchanged"}
    fixed = [verdict for verdict in told if verdict["verdict"] == "fixed"]
    assert len(fixed) == 3
    assert all(error in verdict["without"] and verdict["with_patch"].startswith("ok (") for verdict in fixed)


@pytest.mark.real
def test_verify_says_what_is_not_present_and_fails_where_a_patch_does_not_help(cli, megatron_core, tmp_path):
    told = cli("verify", "mtp-inference", overlays=[megatron_core("0.17.1")]).stdout
    assert "mtp-inference: not present here" in told
    # A sitecustomize that takes the finder away again stands for a hook that is not active. It may print as well.
    (tmp_path / "off" / "sitecustomize.py").parent.mkdir()
    code = "import sys; sys.meta_path[:] = [f for f in sys.meta_path if f is not sys.modules['_mcore_autopatch']]"
    (tmp_path / "off" / "sitecustomize.py").write_text(f"{code}; print('welcome', flush=True)")
    done = cli("verify", "mtp-inference", overlays=[tmp_path / "off", megatron_core("0.16.1")], check=1)
    assert "mtp-inference, eval: NOT FIXED" in done.stdout
    assert "doctor" in done.stderr


# doctor


def test_doctor_finds_nothing_where_all_is_well(doctor, installed):
    assert doctor(installed, check=0) == "nothing found: all is well\n"


def test_doctor_explains_an_installation_with_target(doctor, make_venv, wheel, tmp_path):
    interpreter = make_venv()
    pip_install(interpreter, "--target", tmp_path / "lib", wheel)
    told = doctor(interpreter, PYTHONPATH=tmp_path / "lib")
    assert "pip install --target" in " ".join(told.split())
    assert "mcore_autopatch.install()" in told
    assert "mcore_autopatch.pth is in no site-packages folder" in " ".join(told.split())


def test_doctor_explains_s_option_and_switch(doctor, installed):
    home = installed.parents[1] / "lib"
    (packages,) = home.glob("python*/site-packages")
    assert "started with -S" in doctor(installed, options=["-S"], PYTHONPATH=packages)
    assert "switched off by MCORE_AUTOPATCH=0" in doctor(installed, MCORE_AUTOPATCH=0)


@pytest.fixture
def broken(make_venv, wheel):
    """Return interpreter and site-packages of an installation that a test may damage."""
    interpreter = make_venv(wheel)
    (packages,) = (interpreter.parents[1] / "lib").glob("python*/site-packages")
    return interpreter, packages


def test_doctor_finds_a_start_up_file_that_was_changed_or_is_gone(doctor, broken):
    interpreter, packages = broken
    (packages / "mcore_autopatch.pth").write_text("import os\n")
    told = doctor(interpreter)
    assert "was changed" in told
    assert "the finder is not in sys.meta_path" in " ".join(told.split())
    (packages / "mcore_autopatch.pth").unlink()
    assert "is in no site-packages folder" in " ".join(doctor(interpreter).split())


def test_doctor_finds_old_missing_and_foreign_distributions(doctor, broken):
    interpreter, packages = broken
    pip_install(interpreter, "--no-deps", "wrapt==1.14.0")
    shutil.move(next(packages.glob("wrapt-*.dist-info")) / "METADATA", packages / "kept")
    old = (packages / "kept").read_text().replace("Version: 1.14.0", "Version: 1.13.3")
    (next(packages.glob("wrapt-*.dist-info")) / "METADATA").write_text(old)
    (packages / "evil-1.0.dist-info").mkdir()
    (packages / "evil-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (packages / "evil-1.0.dist-info" / "RECORD").write_text("mcore_autopatch.pth,,\n")
    told = " ".join(doctor(interpreter).split())
    assert "wrapt is 1.13.3" in told
    assert "the distribution evil has installed files of mcore_autopatch" in told


def test_doctor_works_without_wrapt(doctor, broken):
    interpreter, packages = broken
    for path in packages.glob("wrapt*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert "wrapt is not installed" in doctor(interpreter)


def test_a_dependency_that_is_installed_and_cannot_be_imported_is_no_active_hook(doctor, broken, python):
    interpreter, packages = broken
    shutil.rmtree(packages / "wrapt")  # and not what pip knows of it
    told = " ".join(doctor(interpreter, PYTHONPATH=FAKE).split())
    assert "the patches cannot be loaded: ModuleNotFoundError: No module named 'wrapt'" in told
    status = python("-m", "mcore_autopatch", executable=interpreter, PYTHONPATH=FAKE, check=0).stdout
    assert "hook: not active: the patches cannot be loaded" in " ".join(status.split())
    assert "would happen" not in status


@pytest.mark.parametrize("command", [["-m", "mcore_autopatch"], ["bin/mcore-autopatch"]])
def test_without_packaging_one_line_says_what_to_do(python, broken, command):
    interpreter, packages = broken
    shutil.rmtree(packages / "packaging")
    if command[0] != "-m":
        command = [interpreter.with_name("mcore-autopatch")]
    done = python(*command, "doctor", executable=interpreter, check=1)
    assert done.stderr.count("\n") == 1
    assert "pip install --force-reinstall mcore-autopatch" in done.stderr


def test_doctor_finds_a_shadowing_copy_and_two_megatrons(doctor, installed, tmp_path):
    copy = tmp_path / "copy" / "mcore_autopatch"
    shutil.copytree(ROOT / "src" / "mcore_autopatch", copy)
    text = (copy / "__init__.py").read_text()
    (copy / "__init__.py").write_text(re.sub(r'__version__ = ".*"', '__version__ = "0.0.1"', text))
    shutil.copytree(FAKE, tmp_path / "other")
    path = os.pathsep.join(map(str, [tmp_path / "copy", FAKE, tmp_path / "other"]))
    told = " ".join(doctor(installed, PYTHONPATH=path).split())
    assert "version 0.0.1 is loaded from" in told
    assert "there are 2 copies of megatron-core on sys.path" in told


def test_doctor_finds_a_finder_ahead_and_targets_imported_early(doctor, installed, tmp_path):
    (tmp_path / "ahead.py").write_text("""
import sys
class Ahead:
    @staticmethod
    def find_spec(name, path=None, target=None): return None
import megatron.core
sys.meta_path.insert(0, Ahead())
""")
    path = os.pathsep.join([str(tmp_path), str(FAKE)])
    assert "ahead.Ahead stands before our finder" in " ".join(doctor(installed, "ahead", PYTHONPATH=path).split())


@pytest.mark.real
def test_doctor_says_who_replaced_what_and_who_holds_the_unpatched_one(python, megatron_core, tmp_path):
    (tmp_path / "vendor.py").write_text("""
import torch.distributed.checkpoint.filesystem
from torch.distributed.checkpoint.filesystem import _write_item
import megatron.core.models.gpt.gpt_model as g
def _postprocess(self, *args, **kwargs): return None
g.GPTModel._postprocess = _postprocess
""")
    for version, expected in [
        ("0.16.1", "gpt_model.GPTModel._postprocess was replaced by vendor after patch mtp-inference was applied"),
        ("0.12.1", "vendor._write_item is the function that patch serialization-format has replaced"),
    ]:
        overlays = [tmp_path, megatron_core(version)]
        done = python("-m", "mcore_autopatch", "doctor", "vendor", overlays=overlays, check=1)
        assert expected in " ".join(done.stdout.split())


@pytest.mark.real
def test_two_ranks_and_their_checkpoint_workers_leave_reports_that_agree(reports_of_a_job, cli):
    folder = reports_of_a_job()
    told = cli("summarize", folder).stdout
    assert "of 2 ranks on 1 host\n" in told
    assert told.endswith("all agree\n")
    written = [json.loads(path.read_bytes()) for path in folder.iterdir()]
    by_rank = {rank: [each for each in written if each["rank"] == rank] for rank in (0, 1)}
    assert all(len(each) >= 3 for each in by_rank.values()), "the trainer and its workers"


@pytest.mark.real
def test_the_rank_under_another_switch_is_named(reports_of_a_job, cli):
    done = cli("summarize", reports_of_a_job(odd_rank=1), check=1)
    assert "rank 1 on " in done.stdout
    assert "rank 0 on " not in done.stdout
    assert "mtp-inference is skipped (switched off), not skipped (megatron-core version)" in " ".join(
        done.stdout.split()
    )


@pytest.fixture
def reports_of_a_job(python, megatron_core, tmp_path):
    """Return a function that runs a job of two ranks under torchrun and returns the folder of its reports."""
    program = tmp_path / "job.py"
    program.write_text("""
import os, sys
if os.environ["RANK"] == os.environ.get("ODD_RANK"):
    os.environ["MCORE_AUTOPATCH_DISABLE"] = "mtp-inference"
import megatron.core.models.gpt.gpt_model
from mcore_autopatch.reproductions.__main__ import main
if __name__ == "__main__":
    sys.exit(main(["serialization-format", "async", "persistent"]))
""")

    def run(odd_rank=""):
        folder = tmp_path / "reports"
        launcher = ("-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "--local-addr=127.0.0.1")
        path = folder / "{host}-{rank}-{pid}.json"
        overlays = [megatron_core("0.12.1")]
        python(*launcher, program, overlays=overlays, check=0, MCORE_AUTOPATCH_REPORT=path, ODD_RANK=odd_rank)
        return folder

    return run
