"""This process as a document: versions, device, switches and outcomes. The JSON of every report has this form."""

import os
import platform
import socket
import sys
from typing import Any

import mcore_autopatch
from mcore_autopatch import _startup, installed, reporting
from mcore_autopatch.outcome import Outcome

#: Version of the form. It changes when a field goes away or changes its meaning, not when one is added.
SCHEMA = 1
#: No job has as many processes: a rank or a world size from here on is a mistake.
TOO_MANY = 1_000_000


def document() -> dict[str, Any]:
    """Return this process as a dict of JSON values; docs/report-format.md explains each field."""
    return {
        "schema": SCHEMA,
        "mcore_autopatch": mcore_autopatch.__version__,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "rank": _number("RANK"),
        "world_size": _number("WORLD_SIZE"),
        "python": platform.python_version(),
        "executable": sys.executable,
        "hook": _startup.registered(),
        "megatron_core": installed.megatron_core() if "megatron.core" in sys.modules else None,
        "torch": installed.torch(),
        "device": installed.device().value if "torch" in sys.modules else None,
        "switches": {name: value for name, value in sorted(os.environ.items()) if name.startswith("MCORE_AUTOPATCH")},
        "outcomes": [plain(outcome) for outcome in reporting.outcomes()],
    }


def plain(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as a dict of JSON values."""
    values = dict(vars(outcome))
    values["affected"] = str(outcome.affected) if outcome.affected else None
    values["reason"] = outcome.reason.value if outcome.reason else None
    values["status"] = outcome.status.value
    return values


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    number = int(text[:9]) if text.isdecimal() else TOO_MANY
    return number if number < TOO_MANY else None
