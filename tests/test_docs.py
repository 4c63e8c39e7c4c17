"""The documentation says what is the case: links, commands, variables, error texts and code blocks are checked."""

import html
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from environments import ROOT

from mcore_autopatch import SkipReason, Status, catalogue, cli
from mcore_autopatch.switches import NAMES

FAKE = Path(__file__).parent / "fake_megatron"
DOCS = ROOT / "docs"
PAGES = [*(ROOT / f"{name}.md" for name in ("README", "README.zh-CN", "CONTRIBUTING", "CHANGELOG")), *DOCS.glob("*.md")]
EACH = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
PATCHES = {name: patch for name, patch in catalogue.load().patches.items() if patch.origin == catalogue.OWN}
#: A block of code: what stands before the fence on its line, the language, the text.
BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
#: What runs the reproduction named by sys.argv[1], after the block of code that is to be tested.
REPRODUCE = """
import runpy
if __name__ == "__main__":
    runpy.run_module("mcore_autopatch.reproductions", run_name="__main__")
"""


def text_of(page):
    return re.sub(r"<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def blocks(page, *languages):
    """Yield the code blocks of a page, without the indentation that a list gives them, and all the text before each."""
    text = page.read_text(encoding="utf-8")
    for found in BLOCK.finditer(text):
        indentation, language, code = found.groups()
        if language in languages:
            yield re.sub(f"^{indentation}", "", code, flags=re.MULTILINE), text[: found.start()]


def anchors(page):
    """Return the anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", html.unescape(heading).lower()).replace(" ", "-") for heading in headings}


def code_of(page):
    """Return every line of the page's shell blocks, and its inline code."""
    text = text_of(page)
    lines = [line for code, _ in blocks(page, "", "sh") for line in code.splitlines()]
    return [*lines, *re.findall(r"`([^`\n]+)`", BLOCK.sub("", text))]


def commands(page):
    """Yield the arguments of every command of ours on the page. ID and capitals stand for what the reader fills in."""
    for line in code_of(page):
        for part in re.split(r"&&|\|", line):
            words = shlex.split(part, comments=True) if part.count("'") % 2 == 0 and part.count('"') % 2 == 0 else []
            while words and re.fullmatch(r"[A-Z_]+=.*|RUN", words[0]):
                words.pop(0)
            program = " ".join(words)
            if match := re.match(r"(?:\S*/)?(?:mcore-autopatch|python\d? -m mcore_autopatch)(?: (.*))?$", program):
                yield shlex.split(match[1] or "")


def test_the_page_of_the_patches_is_what_the_declarations_say():
    subprocess.run([sys.executable, DOCS / "generate.py", "--check"], check=True)


@EACH
def test_links_and_anchors_lead_somewhere(page):
    text = BLOCK.sub("", text_of(page))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?:", target):
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        assert other.exists(), target
        assert not anchor or anchor in anchors(other), target


def test_every_page_is_in_the_table_of_contents():
    contents = (DOCS / "index.md").read_text()
    assert {path.name for path in DOCS.glob("*.md")} - {"index.md"} <= set(re.findall(r"\(([\w-]+\.md)\)", contents))


@pytest.mark.parametrize("patch", PATCHES.values(), ids=PATCHES)
def test_an_error_text_is_found_by_a_search_of_lines(patch):
    lines = {
        line for page in ("faq.md", "patches.md") for line in (DOCS / page).read_text(encoding="utf-8").splitlines()
    }
    for error in patch.errors:
        assert any(error in line for line in lines), error


@EACH
def test_commands_parse(page):
    for arguments in commands(page):
        cli._parser().parse_args(arguments)  # ends the test, and says why, for what is no command


def test_commands_are_found_in_the_pages():
    assert ["verify"] in commands(ROOT / "README.md")
    assert ["status", "--static"] in commands(DOCS / "clusters.md")
    assert [] in commands(DOCS / "faq.md")


@EACH
def test_variables_exist(page):
    for name in re.findall(r"MCORE_AUTOPATCH(?:_[A-Z]+)*", page.read_text(encoding="utf-8")):
        assert name in NAMES


@pytest.mark.parametrize("readme", ["README.md", "README.zh-CN.md"])
def test_the_readme_explains_every_variable(readme):
    rows = re.findall(r"^\| `(MCORE_AUTOPATCH\w*)=", (ROOT / readme).read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted(NAMES)


def test_every_word_of_an_outcome_is_explained():
    text = (DOCS / "how-it-works.md").read_text()
    for word in (*Status, *SkipReason):
        assert f"\n| `{word.value}` |" in text


def test_every_field_of_a_declaration_is_explained():
    text = (DOCS / "writing-patches.md").read_text()
    table = text.partition("## The fields")[2].partition("\n## ")[0]
    # The catalogue sets these two.
    assert set(re.findall(r"`(\w+)`", table)) >= set(PATCHES["mtp-inference"].__annotations__) - {"id", "origin"}


def test_examples_for_writers_are_those_of_tested_files():
    page = DOCS / "writing-patches.md"
    found = list(blocks(page, "python", "toml"))
    assert len(found) > 5
    for code, before in found:
        link = re.findall(r"\]\(([^)]+\.(?:py|toml))\)", before)[-1]
        assert code in (page.parent / link).read_text(encoding="utf-8"), link


@EACH
def test_code_blocks_of_python_compile(page):
    for code, _ in blocks(page, "python"):
        if page.name != "writing-patches.md":  # parts of files
            compile(code, str(page), "exec")


def workarounds():
    pattern = r"<!-- tested: ([\w-]+) on megatron-core ([\d.]+) -->\n$"
    for code, before in blocks(DOCS / "faq.md", "python"):
        patch, release = re.search(pattern, before).groups()
        yield pytest.param(code, patch, release, id=patch)


@pytest.mark.real
@pytest.mark.parametrize(("code", "patch", "release"), list(workarounds()))
def test_what_helps_without_this_package_does(code, patch, release, python, megatron_core, tmp_path):
    overlays = [megatron_core(release)]
    for preamble, exit_code in (("", 1), (code, 0)):
        (tmp_path / "main.py").write_text(preamble + REPRODUCE)
        done = python("main.py", patch, overlays=overlays, MCORE_AUTOPATCH=0)
        assert done.returncode == exit_code, done.stderr


def test_the_audit_of_the_files_finds_a_change(installed, python):
    ((code, _),) = blocks(DOCS / "security.md", "python")
    assert python("-c", code, executable=installed, check=0).stdout == ""
    (file,) = installed.parents[1].rglob("mcore_autopatch/fleet.py")
    original = file.read_text()
    try:
        file.write_text(f"{original}\n")
        assert python("-c", code, executable=installed, check=0).stdout == "changed: mcore_autopatch/fleet.py\n"
    finally:
        file.write_text(original)


def test_the_hook_opens_no_socket_and_no_file_for_writing_and_starts_no_process(python, tmp_path):
    script = tmp_path / "audited.py"
    script.write_text("""
import os, sys
events = []
def audit(event, arguments):
    if event == "open":
        path, mode, flags = arguments
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            events.append((event, path))
    elif event.startswith(("socket.", "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn",
                           "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.chmod", "os.putenv", "ctypes.")):
        events.append((event, arguments))
sys.addaudithook(audit)
import torch, megatron.core.models.model
import mcore_autopatch
assert len(mcore_autopatch.outcomes()) > 10, mcore_autopatch.report()
print(events)
""")
    overlays = [FAKE]
    assert python(script, overlays=overlays, check=0, PYTHONDONTWRITEBYTECODE=1).stdout == "[]\n"
    # It sees a report being written, so it would see anything else.
    script.write_text(script.read_text() + "import mcore_autopatch.fleet as f; f._write(); print(len(events) > 0)")
    report = tmp_path / "report.json"
    done = python(script, overlays=overlays, check=0, PYTHONDONTWRITEBYTECODE=1, MCORE_AUTOPATCH_REPORT=report)
    assert done.stdout.endswith("True\n")


def test_a_folder_becomes_a_site_folder_in_the_two_ways_of_the_page(wheel, make_venv, python, tmp_path):
    """pip install --target: in itself not active; with either file of docs/clusters.md it is."""
    (line,) = (code for code, _ in blocks(DOCS / "clusters.md", "") if code.startswith("import site"))
    folder = tmp_path / "packages"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder, wheel], check=True)
    line = line.replace("/shared/packages", str(folder))
    interpreter = make_venv()
    count = "import sys; print(sum(getattr(f, '__name__', '') == '_mcore_autopatch' for f in sys.meta_path))"

    def active(*overlays):
        return python("-c", count, executable=interpreter, overlays=overlays, check=0).stdout == "1\n"

    assert not active(folder)
    (folder / "sitecustomize.py").write_text(line)
    assert active(folder)
    (folder / "sitecustomize.py").unlink()
    (packages,) = (interpreter.parents[1] / "lib").glob("python*/site-packages")
    (packages / "shared.pth").write_text(line)
    assert active()
