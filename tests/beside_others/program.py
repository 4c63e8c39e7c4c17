"""Takes steps in the order in which they are named, runs what they are about, and prints what came of it as JSON.

A step is "late" (the start-up hook is taken away), "install" (mcore_autopatch.install()), or a function of a stand-in,
such as "verl_stand_in.create_engine". The first word says what is run: "models", "checkpoints" or "nothing". In a
process that is spawned as a persistent worker no step is taken, as with the real ones.
"""

import contextlib
import importlib
import json
import sys
import traceback

#: What is run -> its module, and the attributes whose layers are looked at.
LOOKED_AT = {
    "models": ("megatron.core.models.gpt.gpt_model", ["GPTModel._postprocess"]),
    "nothing": ("megatron.core.models.gpt.gpt_model", []),
    "checkpoints": (
        "megatron.core.dist_checkpointing.strategies.filesystem_async",
        ["_write_item", "FileSystemWriterAsync.preload_tensors"],
    ),
}


def take(step):
    import mcore_autopatch

    if step == "late":
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not sys.modules["_mcore_autopatch"]]
    elif step == "install":
        mcore_autopatch.install()
    else:
        module, _, function = step.partition(".")
        return getattr(importlib.import_module(module), function)()
    return None


def outcome_of(function):
    try:
        return function()
    except Exception as error:
        traceback.print_exc()
        return f"{type(error).__name__}: {error}"


def models(attachments):
    """Return digests of logits and losses: number of MTP layers, mode -> digest or error."""
    import torch

    from mcore_autopatch.reproductions import _cpu

    batch, labels = _cpu.batch(), _cpu.batch()["input_ids"].roll(-1, dims=1)

    def run(mtp_num_layers, mode):
        model = _cpu.gpt_model(mtp_num_layers).train(mode != "eval")
        for attach in attachments:
            attach(model)
        output = model(**batch, **({"labels": labels} if mode == "labels" else {}))
        assert model.config.mtp_num_layers == mtp_num_layers, "the config was changed"
        values = {"output": output.detach()}
        with contextlib.suppress(RuntimeError):  # whoever returns what has no graph
            output.square().mean().backward()
        if mode == "labels":
            # The MTP loss reaches nothing but gradients.
            values |= {name: parameter.grad for name, parameter in model.named_parameters()}
        return _cpu.digest({name: value for name, value in values.items() if torch.is_tensor(value)})

    return {
        f"{number} {mode}": outcome_of(lambda number=number, mode=mode: run(number, mode))
        for number in (None, 0, 1)
        for mode in ("eval", "train", "labels")
    }


def checkpoints(_):
    from mcore_autopatch.reproductions import _checkpoint

    return {mode: outcome_of(lambda mode=mode: _checkpoint.round_trip(mode)) for mode in _checkpoint.MODES}


def layers(function):
    """Return the files that a function and what it wraps are written in, from the outermost to the innermost."""
    function = getattr(function, "__func__", function)
    names = []
    while function is not None:
        names.append(function.__code__.co_filename.rpartition("/")[2].removesuffix(".py"))
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        inner = cells.get("original")
        function = inner.cell_contents if inner else getattr(function, "__wrapped__", None)
    return names


def main():
    what, *steps = sys.argv[1:]
    attachments = [attach for attach in map(take, steps) if attach]
    results = {"models": models, "checkpoints": checkpoints, "nothing": dict}[what](attachments)
    from mcore_autopatch import doctor, outcomes
    from mcore_autopatch.attributes import look_up, marks

    name, paths = LOOKED_AT[what]
    target = sys.modules[name]
    calls = {key: module.CALLS for key, module in sys.modules.items() if key.endswith("_stand_in")}
    print(
        json.dumps(
            {
                "results": results,
                "layers": {path: layers(look_up(target, path)) for path in paths},
                "marks": {path: marks(look_up(target, path)) for path in paths},
                "outcomes": {o.patch: o.reason.name if o.reason else o.status.name for o in outcomes()},
                "findings": [finding.what for finding in doctor.findings(active=True)],
                "calls": calls,
            }
        )
    )


if __name__ == "__main__":
    main()
