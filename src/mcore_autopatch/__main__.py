"""``python -m mcore_autopatch``: what happens to megatron-core in this environment, and why."""

import contextlib
import importlib
import io
import os
import site
import sys
import warnings

from mcore_autopatch import _startup


def main() -> int:
    """Import the targets of all patches, print what became of each patch, and return 0."""
    print(f"hook:          {_hook()}")  # noqa: T201
    from mcore_autopatch import catalogue, engine, reporting

    engine.install()
    problems = []
    for target in sorted({patch.target for patch in catalogue.load().patches.values()}):
        if _startup.switched_off():
            break
        try:
            # What megatron-core and torch say while they load belongs to somebody else's program.
            with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
                warnings.simplefilter("ignore")
                importlib.import_module(target)
        except Exception as error:
            problems.append(f"{target} cannot be imported: {type(error).__name__}: {error}")
    print("\n".join([*reporting.report().splitlines()[1:], *problems]))  # noqa: T201
    return 0


def _hook() -> str:
    """Tell whether Python's start has registered the finder, or why not and what to do."""
    if _startup.switched_off():
        return f"switched off by MCORE_AUTOPATCH={os.environ['MCORE_AUTOPATCH']}"
    if any(type(finder) is _startup.Finder for finder in sys.meta_path):
        return "active"
    by_hand = "call mcore_autopatch.install() before megatron.core is imported"
    if sys.flags.no_site:
        return f"not active: python -S reads no .pth files; {by_hand}"
    folders = [*site.getsitepackages(), site.getusersitepackages()]
    if not any(os.path.exists(os.path.join(folder, "mcore_autopatch.pth")) for folder in folders):  # noqa: PTH110, PTH118
        return f"not active: mcore_autopatch.pth is in no site-packages folder of this Python; {by_hand}"
    return f"not active, although mcore_autopatch.pth is installed; {by_hand}"


if __name__ == "__main__":
    sys.exit(main())
