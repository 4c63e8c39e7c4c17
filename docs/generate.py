# ruff: noqa: INP001
"""Writes docs/patches.md from the declarations of the patches: ``python docs/generate.py``. Needs packaging.

With ``--check`` nothing is written, and the exit code is 1 if the file is not what would be written.
"""

import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

# The declarations beside this file, whatever copy of the package was loaded when Python started.
for loaded in [name for name in sys.modules if name.partition(".")[0] == "mcore_autopatch"]:
    del sys.modules[loaded]
sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from mcore_autopatch import Patch, catalogue  # noqa: E402

FILE = Path(__file__).with_name("patches.md")
#: Whose repository a short reference such as verl#6322 means. A reference that is not short needs no entry.
OWNERS = {"Megatron-LM": "NVIDIA", "pytorch": "pytorch", "verl": "verl-project"}
HEAD = """\
# The patches

<!-- Written by docs/generate.py from the declarations in src/mcore_autopatch/patches; edit those. -->

A patch is considered for the releases in its table and applied only if its probe finds the bug in the loaded code.
`mcore-autopatch` says what became of each here, `mcore-autopatch verify` shows it on your own packages. What the words
mean is in [How it works](how-it-works.md); what to do without this package is in the [FAQ](faq.md).
"""


def document() -> str:
    """Return the text of the page. Patches of other distributions and of folders are left out."""
    patches = [patch for patch in catalogue.load().patches.values() if patch.origin == catalogue.OWN]
    overview = _table(
        ("patch", "megatron-core", "torch", "device", "what is broken"),
        (
            (
                f"[{patch.id}](#{patch.id})",
                _all(_code(row.megatron_core) for row in patch.affected),
                _any_of(_code(row.torch) for row in patch.affected),
                _any_of(row.device and row.device.value for row in patch.affected),
                _prose(patch.title) + (" (**off unless enabled**)" if patch.opt_in else ""),
            )
            for patch in patches
        ),
    )
    return "\n".join([HEAD, overview, *("\n".join(_section(patch)) for patch in patches)])


def _section(patch: Patch) -> Iterator[str]:
    yield f"## {patch.id}\n"
    yield _capitalized(f"{_prose(patch.title)}.\n")
    yield f"**Without it.** {_prose(patch.symptom)}\n"
    yield "\n".join(["```text", *patch.errors, "```\n"]) if patch.errors else ""
    yield f"**Why.** {_capitalized(_prose(patch.cause))}\n"
    yield f"**With it.** {_prose(patch.effect)}\n"
    yield _table(
        ("megatron-core", "torch", "device", "shown by"),
        (
            (
                _code(row.megatron_core),
                _any_of([_code(row.torch)]),
                _any_of([row.device and row.device.value]),
                _prose(row.source),
            )
            for row in patch.affected
        ),
    )
    yield _table(("", ""), _facts(patch))


def _facts(patch: Patch) -> Iterator[tuple[str, str]]:
    yield "applied only where", _prose(_first(patch.probe).removeprefix("Tell whether "))
    yield "target", _code(patch.target)
    for path, make in patch.replacements.items():
        yield f"replaces {_code(path)}", _prose(_first(make))
    for name, value in patch.additions.items():
        yield f"adds {_code(name)}", _code(repr(value))
    if patch.execution:
        yield "acts while the target is executed", _prose(_first(patch.execution))
    yield "fixed upstream in", patch.fixed_in or "no release yet"
    yield "upstream", f"<{patch.upstream}>"
    if patch.opt_in:
        yield "why it is off", _prose(patch.opt_in)
        yield "to switch it on", _code(f"MCORE_AUTOPATCH_ENABLE={patch.id}")
    else:
        yield "to leave it out", _code(f"MCORE_AUTOPATCH_DISABLE={patch.id}")
    yield "to see it", _code(f"mcore-autopatch verify {patch.id}")


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines) + "\n"


def _all(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(values))


def _any_of(values: Iterable[str | None]) -> str:
    """List values of rows; "any" where a row names none."""
    values = list(values)
    return _all(filter(None, values)) if all(values) else "any"


def _code(text: str) -> str:
    return text and f"`{text}`"


def _first(described: object) -> str:
    """Return the first paragraph of a docstring."""
    return " ".join((inspect.getdoc(described) or "").partition("\n\n")[0].split())


def _prose(text: str) -> str:
    """Return plain text of a declaration as Markdown, with links for references such as verl#6322."""
    text = re.sub(r"([<*])", r"\\\1", text.replace("``", "`"))
    return re.sub(r"(?:([\w-]+)/)?\b([\w-]+)#(\d+)\b", _link, text)


def _link(reference: re.Match[str]) -> str:
    owner, repository, number = reference.groups()
    owner = owner or OWNERS.get(repository)
    return f"[{reference[0]}](https://github.com/{owner}/{repository}/issues/{number})" if owner else reference[0]


def _capitalized(text: str) -> str:
    """Begin with a capital letter, unless the first word is a name of the code."""
    return text if re.match(r"\w*[_.(]", text) else text[0].upper() + text[1:]


def main(arguments: list[str]) -> int:
    """Write the page, or with ``--check`` compare it."""
    text = document()
    if arguments == ["--check"]:
        if FILE.exists() and FILE.read_text(encoding="utf-8") == text:
            return 0
        sys.stderr.write("docs/patches.md is not what the declarations say; run python docs/generate.py\n")
        return 1
    FILE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
