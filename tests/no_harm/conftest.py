"""Says at the end how many values were compared, and what could not be."""

import collections

import pytest


@pytest.fixture
def tell(record_property):
    """Return a function that takes the lists whose entries the summary counts."""

    def tell(**lists):
        for name, entries in lists.items():
            # Only plain types get from a worker of xdist to the process that writes the summary.
            record_property(f"no_harm {name}", dict(collections.Counter(entries)))

    return tell


def pytest_terminal_summary(terminalreporter):
    told = collections.defaultdict(collections.Counter)
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, counts in getattr(report, "user_properties", ()):
                # The report of the teardown has them once more.
                if name.startswith("no_harm ") and report.when == "call":
                    told[name.removeprefix("no_harm ")].update(counts)
    for name, counts in told.items():
        terminalreporter.section(f"{name.replace('_', ' ')}: {counts.total()}")
        for key, count in sorted(counts.items()):
            terminalreporter.write_line(f"{count:8} {key}")
