"""How long the fuzz tests look: a moment in each run of the tests, or FUZZ_SECONDS in all: `nox -s fuzz -- 3600`."""

import os
import time

import pytest
from hypothesis import HealthCheck, settings

#: Shared evenly among those of the selected tests that look for examples.
SECONDS = float(os.environ.get("FUZZ_SECONDS", "0"))

common = {"deadline": None, "suppress_health_check": list(HealthCheck), "print_blob": True}
# The same examples each time, so that chance does not decide about a commit.
settings.register_profile("short", max_examples=50, derandomize=True, database=None, **common)
# Derandomized, every round would look at the same examples.
settings.register_profile("long", max_examples=500, derandomize=False, **common)
# Not loaded, because that would change the tests outside of this folder as well; each module takes it by this name.
settings.register_profile("fuzz", settings.get_profile("long" if SECONDS else "short"))


@pytest.hookimpl(hookwrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    """Repeat a test with new examples until its share of the time is over, or until it fails."""
    looking = sum(hasattr(item.obj, "hypothesis") for item in pyfuncitem.session.items)
    ends = time.monotonic() + SECONDS / max(1, looking)
    outcome = yield
    if outcome.excinfo is None and hasattr(pyfuncitem.obj, "hypothesis"):
        arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
        try:
            while time.monotonic() < ends:
                pyfuncitem.obj(**arguments)
        except BaseException as error:
            outcome.force_exception(error)
