"""Says at the end how many values were compared, and what could not be."""

import collections

import pytest


@pytest.fixture
def tell(record_property):
    """Return a function that hands a part of the summary over, which works between processes too."""
    return lambda **counts: [record_property(f"no_harm {name}", count) for name, count in counts.items()]


def pytest_terminal_summary(terminalreporter):
    told = collections.defaultdict(collections.Counter)
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, counts in getattr(report, "user_properties", ()):
                if name.startswith("no_harm "):
                    told[name.removeprefix("no_harm ")].update(counts)
    for name, counts in told.items():
        terminalreporter.section(f"{name.replace('_', ' ')}: {counts.total()}")
        for key, count in sorted(counts.items()):
            terminalreporter.write_line(f"{count:8} {key}")
