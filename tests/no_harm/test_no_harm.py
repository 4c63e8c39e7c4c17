"""No harm: a process with us gives what one without us gives, bit for bit, on every release of megatron-core.

`python -m nox -s no_harm` runs it; the default run of the tests does not.
"""

import collections
import importlib.metadata
import json
import re
import tempfile
from pathlib import Path

import pytest
from environments import CACHE, load_toml, releases
from packaging.specifiers import SpecifierSet

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs.py"
ENVIRONMENT = f"torch-{importlib.metadata.version('torch').split('+')[0]}"
RELEASES = [version for version, release in releases()["releases"].items() if ENVIRONMENT in release["environments"]]
DECLARED = load_toml(HERE / "declared.toml")
#: What differs between two runs without us, in texts: what it is -> what it looks like.
VARYING = {
    "temporary folder": r"(?<=/tmp/mcore-autopatch-)\w{8}",
    "temporary folder of torchrun": r"(?<=/tmp/torchelastic_)\w{8}/[\w-]+",
    "time": r"(?<='time': )\d+|(?<='times_spent': )\d+|(?<![\w.-])\d+\.\d+(e-\d+)?(?=s?(?![\w.]))",
    "address": r"(?<= at )0x[0-9a-f]+",
    "memory in use": r"(?<=consumed: )\d+|(?<=before: )\d+|(?<=after: )\d+",
    "port of torchrun": r"(?<='MASTER_PORT', ')\d+",
    "number of a save": r"(?<='uuid': ')\d+",
    "identifier of a save": r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
}
#: Where it is found. Everything else is compared as it is.
TEXTS = {"log", "stdout", "stderr", "process", "file"}


def normal(kind, text, rules=VARYING):
    if kind in TEXTS:
        for rule in rules:
            text = re.sub(VARYING[rule], f"<{rule}>", text)
    return text


class Seen:
    """What was seen of all programs: program -> {(kind, name): value}, and what became of the patches in them."""

    def __init__(self, folder):
        self.programs = collections.defaultdict(dict)
        self.patches = {}
        for path in sorted(folder.iterdir()):
            values = self.programs[path.stem]
            if path.suffix == ".json":
                content = json.loads(path.read_text())
                self.patches[path.stem] = content["patches"]
                values.update({(kind, name): value for kind, name, value in content["values"]})
            else:
                values[path.suffix[1:], ""] = path.read_text()

    def raised(self, program):
        return self.programs[program].get(("exception", ""), "").partition("\n")[0]


@pytest.fixture
def observe(python, megatron_core):
    """Return a function that runs all programs, or some, in a new interpreter and returns what was seen of them."""

    def run(version, switch, *only, **variables):
        variables.update(overlays=[megatron_core(version)], timeout=600, MCORE_AUTOPATCH=switch)
        # megatron-core puts the commit of the repository that it finds itself in into its version.
        variables["GIT_CEILING_DIRECTORIES"] = CACHE
        torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
        launchers = {"alone": (), **({} if only else {"together": torchrun})}
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for program, launcher in launchers.items():
                done = python(*launcher, PROGRAMS, folder, *only, check=0, **variables)
                (folder / f"{program}.stdout").write_text(done.stdout)
                (folder / f"{program}.stderr").write_text(done.stderr)
            ends = json.loads((folder / "ends.stdout").read_text())
            assert not any(ends.values()), f"killed: {ends}"
            return Seen(folder)

    return run


def declarations(kind, version, programs):
    """Return program -> what is declared of it for this release."""
    return {
        program: declared
        for declared in DECLARED[kind]
        if version in SpecifierSet(declared["megatron_core"])
        for program in programs
        if program in declared["programs"] or re.sub(r"^rank-\d-", "rank-", program) in declared["programs"]
    }


def differences(without, with_us, programs):
    """Yield what differs, as (program, kind, name, value without us, value with us)."""
    for program in programs:
        values, others = without.programs[program], with_us.programs[program]
        for kind, name in values.keys() | others.keys():
            value, other = values.get((kind, name)), others.get((kind, name))
            if value is None or other is None or normal(kind, value) != normal(kind, other):
                yield program, kind, name, value, other


def shown(differing):
    lines = []
    for program, kind, name, *values in sorted(differing, key=str):
        lines.append(f"{program}: {kind} {name}".rstrip())
        texts = [normal(kind, value or "") for value in values]
        same = next((at for at, both in enumerate(zip(*texts, strict=False)) if len({*both}) > 1), min(map(len, texts)))
        for side, value, text in zip(("without us", "with us"), values, texts, strict=True):
            lines.append(f"  {side}: {'nothing' if value is None else '…' + text[max(0, same - 60) : same + 240]!r}")
    return "\n".join(lines)


@pytest.mark.real
@pytest.mark.parametrize("version", RELEASES)
def test_nothing_differs(observe, tell, version):
    without, with_us = observe(version, 0), observe(version, 1)

    programs = without.programs.keys()
    defects = declarations("defects", version, programs)
    cannot_run = declarations("cannot_run", version, programs)
    # It is the patches that are compared, and none of them is in trouble.
    assert not any(without.patches.values())
    assert {status for patches in with_us.patches.values() for status in patches.values()} >= {"APPLIED"}
    assert not [program for program, patches in with_us.patches.items() if "FAILED" in patches.values()]
    # What fails is known, and nothing is said to fail that works.
    assert {program: without.raised(program) for program in programs if without.raised(program)} == {
        program: declared["error"] for program, declared in {**cannot_run, **defects}.items()
    }
    for program, defect in defects.items():
        assert with_us.raised(program) == "", f"{program} still fails"
        assert with_us.patches[program][defect["patch"]] == "APPLIED", program
    compared = [program for program in programs if program not in defects]
    differing = list(differences(without, with_us, compared))
    assert not differing, shown(differing)

    assert with_us.programs.keys() == programs
    tell(
        values_compared=[kind for program in compared for kind, _ in without.programs[program]],
        programs_that_are_the_same=[program for program in compared if program in without.patches],
        programs_that_fail_without_us=[f"{program}: {defect['patch']}" for program, defect in defects.items()],
        programs_that_cannot_run_either_way=[f"{name}: {declared['error']}" for name, declared in cannot_run.items()],
    )


@pytest.mark.real
def test_only_what_differs_between_two_runs_without_us_is_left_out(observe, tell):
    needed = collections.Counter()
    for version in (RELEASES[0], RELEASES[-1]):
        first, second = observe(version, 0), observe(version, 0)
        # Which of several writers fails first is not always the same.
        programs = first.programs.keys() - declarations("defects", version, first.programs)
        differing = list(differences(first, second, programs))
        assert not differing, shown(differing)
        for program in programs:
            for (kind, name), value in first.programs[program].items():
                other = second.programs[program][kind, name]
                for rule in VARYING if value != other else ():
                    rules = VARYING.keys() - {rule}
                    needed[rule] += normal(kind, value, rules) != normal(kind, other, rules)

    assert {rule for rule, count in needed.items() if count} == VARYING.keys()
    tell(values_that_differ_between_two_runs_without_us=list(needed.elements()))


HARMFUL = """
from mcore_autopatch import Affected, Patch

def harmful(original):
    def forward(*args, **kwargs):
        import logging, os, random, warnings
        import numpy as np
        import torch
        result = original(*args, **kwargs)
        {statement}
        return result
    return forward

patch = Patch(
    title="harm", symptom="none", cause="none", effect="harm", upstream="none",
    target="megatron.core.models.gpt.gpt_model",
    affected=(Affected(megatron_core=">=0", source="this test"),),
    probe=lambda module: True,
    replacements={{"GPTModel.forward": harmful}},
)
"""
#: What a patch does -> the kinds of values in which it is seen.
HARM = {
    "result.data = torch.nextafter(result.data, result.data + 1)": {"loss"},
    "result.register_hook(lambda gradient: gradient * (1 + 2**-23))": {"loss", "gradient", "weight", "file"},
    "warnings.warn('a warning that nobody is shown', DeprecationWarning)": {"warning"},
    "logging.getLogger('megatron.core').debug('a line')": {"log"},
    "print('a line')": {"stdout"},
    "os.write(2, b'a line')": {"stderr"},
    "torch.rand(1)": {"RNG"},
    "np.random.rand()": {"RNG"},
    "random.random()": {"RNG"},
    "os.environ['LINE'] = '1'": {"process"},
    "import this": {"process", "stdout"},
    "torch.set_grad_enabled(False)": {"exception"},
    "raise ValueError(f'no {result.shape}')": {"exception"},
}


@pytest.mark.real
def test_harm_is_seen(observe, tmp_path):
    """Each harm comes from a patch that is there alone, in programs that need none on this release."""
    version, programs = "0.15.3", ("gpt", "checkpoint-model")
    without = observe(version, 0, *programs)
    for number, (statement, kinds) in enumerate(HARM.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "harmful.py").write_text(HARMFUL.format(statement=statement))
        with_it = observe(version, 1, *programs, MCORE_AUTOPATCH_ONLY="harmful", MCORE_AUTOPATCH_PATH=folder)
        seen = {kind for _, kind, *_ in differences(without, with_it, without.programs)}
        assert seen >= kinds, statement
