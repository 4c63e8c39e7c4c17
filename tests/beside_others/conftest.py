"""Fixtures of the tests with those who patch megatron-core too."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

HERE = Path(__file__).parent


@pytest.fixture
def beside(python, megatron_core):
    """Return a function: release of megatron-core, what to run, steps, variables -> what program.py prints."""

    def run(version, what, *steps, **variables):
        overlays = [HERE / "theirs", megatron_core(version)]
        done = python(HERE / "program.py", what, *steps, overlays=overlays, check=0, **variables)
        return SimpleNamespace(**json.loads(done.stdout.splitlines()[-1]))

    return run


@pytest.fixture(scope="session")
def known():
    """Results of models that neither we nor anybody else has touched, by release."""
    return {}


@pytest.fixture
def alone(beside, known):
    """Return a function: release -> results of its models without us and without anybody else."""

    def run(version):
        if version not in known:
            known[version] = beside(version, "models", MCORE_AUTOPATCH=0).results
        return known[version]

    return run


@pytest.fixture
def fixed(alone):
    """Return a function: release -> results of its models as they should be.

    With labels and without MTP they are upstream's, and without labels those of the model without MTP.
    """

    def expected(version):
        results = alone(version)
        return {case: results[case if case.endswith("labels") else f"None {case.split()[1]}"] for case in results}

    return expected
