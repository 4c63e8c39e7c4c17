"""What an import, arming and a call cost once Python runs. Run in fresh interpreters; prints JSON.

Each figure is the least of many short repeats: other load can only add to it.
"""

import importlib
import inspect
import itertools
import json
import sys
import tempfile
import time
import timeit
import types
from pathlib import Path

import _mcore_autopatch

COUNT = 200


def least(function, number, repeat):
    """Seconds of one call."""
    return min(timeit.repeat(function, number=number, repeat=repeat)) / number


def misses():
    """Nanoseconds of a look-up that is none of our business: asked directly, and as one more finder of importlib's."""
    find_spec = _mcore_autopatch.find_spec
    direct = min(timeit.repeat("f('numpy.linalg', None, None)", globals={"f": find_spec}, number=1000, repeat=1000))
    call = min(timeit.repeat("f('numpy.linalg', None, None)", globals={"f": lambda *_: None}, number=1000, repeat=1000))
    loop = importlib._bootstrap._find_spec
    finders = sys.meta_path[:]
    without = [finder for finder in finders if finder is not _mcore_autopatch]
    empty = types.SimpleNamespace(find_spec=lambda name, path=None, target=None: None)
    more = {"ours": [_mcore_autopatch], "empty": [empty], "none": []}
    best = dict.fromkeys(more, 1e9)
    for _ in range(100):
        for ours in best:
            sys.meta_path[:] = [*more[ours], *without]
            # A built-in module: the search is as short as it can be, so that the difference is little disturbed.
            best[ours] = min(best[ours], least(lambda: loop("_imp", None), 100, 20))
    sys.meta_path[:] = finders
    return {
        "direct_ns": direct * 1e6,
        "empty_function_ns": call * 1e6,
        "loop_ns": (best["ours"] - best["none"]) * 1e9,
        "loop_empty_ns": (best["empty"] - best["none"]) * 1e9,
    }


def hooked():
    """Microseconds of importing a target without a patch, a module that wrapt alone has a hook for, and any other."""
    import wrapt

    from mcore_autopatch import engine

    engine.arm(_mcore_autopatch)
    groups = {which: [f"{which}_{number}" for number in range(COUNT)] for which in ("hooked", "wrapt", "plain")}
    with tempfile.TemporaryDirectory() as folder:
        for name in itertools.chain(*groups.values()):
            Path(folder, f"{name}.py").write_text("x = 1\n")
        sys.path.insert(0, folder)
        for name in groups["hooked"]:
            engine._patches[name] = []
        _mcore_autopatch.names = frozenset(groups["hooked"])
        best = dict.fromkeys(groups, 1e9)
        for _ in range(40):
            for which, group in groups.items():
                for name in group:
                    sys.modules.pop(name, None)
                    if which == "wrapt":  # which forgets a hook that has fired
                        wrapt.register_post_import_hook(lambda module: None, name)
                    started = time.perf_counter()
                    importlib.import_module(name)
                    best[which] = min(best[which], time.perf_counter() - started)
        sys.path.remove(folder)
    return {f"{which}_us": seconds * 1e6 for which, seconds in best.items()}


def arming():
    """Milliseconds of arming, once in a process, with torch loaded as it is when megatron-core is imported."""
    import torch  # noqa: F401

    before = set(sys.modules)
    milliseconds = timeit.timeit(lambda: _mcore_autopatch.find_spec("megatron.core"), number=1) * 1e3
    return {"ms": milliseconds, "modules": len(set(sys.modules) - before)}


class _Model:
    """Stands for a model, as far as the replacements ask."""

    training, post_process, mtp_process = True, True, True

    class config:
        mtp_num_layers, fp8 = 1, None


def _stubs():
    """Yield patch, attribute, original, arguments and keywords of a call that needs no change."""
    import torch

    tensor, model = torch.ones(4), _Model()
    torch.cuda.is_available = lambda: True  # where it is not, what follows is changed
    item, writer = object(), type("Transforms", (), {"transform_save_stream": None})()

    def _write_item(transforms, stream, data, write_item, storage_key, serialization_format): ...

    yield "serialization-format", "_write_item", _write_item, (writer, item, item, item, item, item), {}
    yield "write-item-transforms", "_write_item", _write_item, (writer, item, item, item, item, item), {}

    def preload_tensors(write_buckets, non_blocking=True): ...

    yield "preload-without-cuda", "FileSystemWriterAsync.preload_tensors", preload_tensors, (item, False), {}

    def maybe_finalize_async_calls(self, blocking=False): ...

    finalize = "AsyncCallsQueue.maybe_finalize_async_calls"
    yield "dead-checkpoint-worker", finalize, maybe_finalize_async_calls, (model,), {"blocking": False}

    source = "megatron-core-0.16.1"
    fields = [
        "hidden_states",
        "input_ids",
        "position_ids",
        "labels",
        "rotary_pos_emb",
        "rotary_pos_cos",
        "rotary_pos_sin",
    ]
    fields += [
        "mtp_in_postprocess",
        "loss_mask",
        "decoder_input",
        "attention_mask",
        "inference_params",
        "packed_seq_params",
    ]
    given = dict.fromkeys(fields, tensor)
    namespace = {}
    # Its condition is read from the source of the original, so that the stub has one too.
    code = f"def _postprocess(self, {', '.join(fields)}, **extra):\n    pass\n"
    exec(compile(code, source, "exec"), namespace)
    stub = namespace["_postprocess"]
    yield "mtp-inference", "GPTModel._postprocess", stub, (model,), given

    def forward(self, input_ids, position_ids, hidden_states, attention_mask, labels=None, loss_mask=None, **rest): ...

    block = dict.fromkeys(("input_ids", "position_ids", "hidden_states", "attention_mask", "labels"), tensor)
    yield "mtp-block-inference", "MultiTokenPredictionBlock.forward", forward, (model,), block

    rolled = tensor, torch.tensor(3)

    def roll_tensor(tensor, shifts=-1, dims=-1, cp_group=None, packed_seq_params=None):
        return rolled

    yield "mtp-empty-loss-mask", "roll_tensor", roll_tensor, (tensor,), {"shifts": -1, "dims": -1, "cp_group": None}

    def _checkpointed_forward(self, forward_func, *args, **kwargs): ...

    keywords = ["hidden_states", "decoder_input", "attention_mask", "rotary_pos_emb", "context", "sequence_len_offset"]
    layer = dict.fromkeys(keywords, tensor)
    name = "MultiTokenPredictionLayer._checkpointed_forward"
    yield "mtp-recompute-packed-seq", name, _checkpointed_forward, (model, item), layer
    yield "mtp-recompute-padding-mask", name, _checkpointed_forward, (model, item), {**layer, "padding_mask": None}


def calls():
    """Nanoseconds per call: the original alone, through a closure that only passes on, and through the replacement."""
    from mcore_autopatch import catalogue

    def passing(original):
        def replacement(*args, **kwargs):
            return original(*args, **kwargs)

        return replacement

    patches = catalogue.load().patches
    getsource = inspect.getsource
    told = {}
    for patch, attribute, original, args, kwargs in _stubs():
        inspect.getsource = lambda thing: "def stub(): pass" if thing is original else getsource(thing)
        functions = original, passing(original), patches[patch].replacements[attribute](original)
        inspect.getsource = getsource
        best = [1e9] * 3
        for _ in range(30):
            for which, function in enumerate(functions):
                run = {"f": function, "a": args, "k": kwargs}
                best[which] = min([best[which], *timeit.repeat("f(*a, **k)", globals=run, number=500, repeat=10)])
        direct, closure, replaced = (seconds / 500 * 1e9 for seconds in best)
        told[patch] = {"attribute": attribute, "direct_ns": direct, "closure_ns": closure, "replacement_ns": replaced}
    return told


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()))
