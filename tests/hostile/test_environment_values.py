"""Values of environment variables, names of files and texts that are empty, huge, not UTF-8, or meant to deceive."""

import json
import os
import subprocess
import sys

import pytest
from environments import FAKE, PREAMBLE, clean_environment

NAMES = ["", "_VERBOSE", "_DISABLE", "_ONLY", "_FORCE", "_ENABLE", "_STRICT", "_PATH", "_REPORT"]
EVIL = "\x1b]0;owned\x07\x1b[2J\rmcore-autopatch: all is well\nmcore-autopatch: line two\u202e\x9b31m"
VALUES = {
    "empty": b"",
    "blank": b" \t ",
    "newline": b"\n",
    "terminal": EVIL.encode(),
    "latin-1": b"caf\xe9,\xff\xfe",
    "huge": b"x," * 60_000,
    "one huge word": b"y" * 120_000,
    "quotes": b"'\"`$(touch owned)`;{}{pid}{0.__class__}%s%(x)s",
    "commas": b",,;:,," * 100,
    "surrogates": "\ud800\udfff".encode("utf-8", "surrogatepass"),
}
CODE = f"""{PREAMBLE}
use(patch(), patch("two", probe=lambda module: 1 / 0))
import megatron.core.models.model as m
print(m.function(1)[-2:], m.Model.static(2))
"""


def harmless(stderr):
    """Tell whether a terminal shows every line as it is, and each line is one that we have begun."""
    text = stderr.decode()
    assert all(line.isprintable() for line in text.split("\n")), ascii(text)
    assert "\nmcore-autopatch: line two" not in text
    assert all(len(line) < 10_000 for line in text.split("\n"))


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("name", NAMES)
def test_no_value_of_a_switch_breaks_the_import_or_reaches_the_terminal_raw(tmp_path, name, value):
    # Guards: printable() in reporting.warn(), in catalogue.load() and in Outcome; LIMIT for those that are huge.
    environment = {os.fsencode(key): os.fsencode(text) for key, text in clean_environment(PYTHONPATH=FAKE).items()}
    environment[b"MCORE_AUTOPATCH" + name.encode()] = value
    # Folders are read by the catalogue itself.
    command = [sys.executable, "-c", CODE.replace("use(", "(lambda *_: 0)(") if name == "_PATH" else CODE]
    done = subprocess.run(command, env=environment, capture_output=True, cwd=tmp_path, timeout=60, check=False)
    assert done.stdout == b"(1, 1) ('static', 2)\n"
    assert done.returncode == 0
    harmless(done.stderr)
    assert not (tmp_path / "owned").exists()


def test_a_misspelt_name_is_shown_without_its_control_characters(tmp_path):
    environment = clean_environment(PYTHONPATH=FAKE, **{f"MCORE_AUTOPATCH_{EVIL}": "1"})
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, cwd=tmp_path, timeout=60, check=True
    )
    harmless(done.stderr)
    assert b"is no switch" in done.stderr


@pytest.mark.parametrize("verbose", ["0", "2"])
def test_what_others_write_is_shown_escaped(python, tmp_path, verbose):
    # Guard: printable(), for the name of a file, the text of an exception, a title, a version and a source.
    folder = tmp_path / "evil\x1b[2J\nfolder"
    folder.mkdir()
    declaration = f"""
from mcore_autopatch import Affected, Patch
EVIL = {EVIL!r}
patch = Patch(title=EVIL, symptom=EVIL, cause=EVIL, effect=EVIL, upstream=EVIL, target="megatron.core.models.model",
    affected=(Affected(megatron_core=">=0.1", source=EVIL),), opt_in=EVIL, recognised_by="wrong",
    probe=lambda module: True, replacements={{"function": lambda original: original}})
"""
    (folder / "off.py").write_text(declaration, encoding="utf-8", errors="surrogatepass")
    (folder / "on.py").write_text(declaration.replace("opt_in=EVIL, ", ""), encoding="utf-8")
    (folder / "raising.py").write_text(f"raise ValueError({EVIL!r})")
    (folder / "na\x1bme.py").write_text(f"raise SystemExit({EVIL!r})")
    raising = declaration.replace("lambda module: True", "lambda module: exec('raise KeyError(EVIL)', globals())")
    (folder / "probing.py").write_text(raising.replace("opt_in=EVIL, ", ""), encoding="utf-8")
    code = f"""
import sys, torch, megatron.core.models.model as m, mcore_autopatch, warnings
torch.__version__ = {EVIL!r}
print(m.function(1))
print(ascii(mcore_autopatch.report()))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=clean_environment(PYTHONPATH=FAKE, MCORE_AUTOPATCH_PATH=folder, MCORE_AUTOPATCH_VERBOSE=verbose),
        capture_output=True,
        cwd=tmp_path,
        timeout=60,
        check=True,
    )
    harmless(done.stderr)
    assert done.stderr.count(b"failed: ") == 3
    first, report = done.stdout.decode().splitlines()
    assert first == "('function', 1, 1)"
    assert r"\x1b" not in report.replace(r"\\x1b", "")


@pytest.mark.parametrize(
    ("host", "rank", "name"),
    [
        ("../../evil", "..", "__.._evil-_"),
        ("/etc/passwd", "/", "_etc_passwd-_"),
        ("..", "{pid}", "_-_pid_"),
        ("node-1.example.com", "12", "node-1.example.com-12"),
        ("no\nde\x1b", "0\x00", "no_de_-0_"),
        ("{rank}", "{host}", "_rank_-_host_"),
    ],
)
def test_what_a_host_or_a_rank_is_called_does_not_choose_the_folder_of_a_report(python, tmp_path, host, rank, name):
    # Guard: re.sub() in fleet._write().
    code = f"""
import os, socket
socket.gethostname = lambda: {host!r}
class Environ(dict):
    def get(self, key, default=None): return {rank!r} if key == "RANK" else dict.get(self, key, default)
from mcore_autopatch import fleet
fleet.os.environ = Environ(os.environ)
{CODE}
"""
    target = tmp_path / "a" / "b" / "{host}-{rank}"
    done = python("-c", code, overlays=[FAKE], check=0, MCORE_AUTOPATCH_REPORT=target)
    assert "REPORT" not in done.stderr
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()] == [f"a/b/{name}"]
    assert json.loads((tmp_path / "a" / "b" / name).read_text())["host"] == host


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-16"])
def test_a_terminal_that_cannot_show_our_characters_gets_something_readable(python, tmp_path, encoding):
    (tmp_path / "broken.py").write_text("raise ValueError('Grüße…')", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", CODE.replace("use(", "(lambda *_: 0)(")],
        env=clean_environment(PYTHONPATH=FAKE, MCORE_AUTOPATCH_PATH=tmp_path, PYTHONIOENCODING=encoding, LC_ALL="C"),
        capture_output=True,
        timeout=60,
        check=True,
        cwd=tmp_path,
    )
    assert "broken" in done.stderr.decode(encoding)
    assert "failed: ValueError: Gr" in done.stderr.decode(encoding)
