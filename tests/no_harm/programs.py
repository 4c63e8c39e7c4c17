"""Programs over megatron-core, and all that can be seen of them: `programs.py FOLDER [NAME…]`, or under torchrun.

Writes one JSON file per program into the folder, with values as [kind, name, value], and what it prints beside it.
Each program runs in a process forked off after the imports, with the same random numbers; under torchrun they run one
after the other.
"""

import atexit
import contextlib
import functools
import gc
import hashlib
import json
import logging
import os
import pickle
import random
import signal
import sys
import threading
import warnings
from pathlib import Path

#: What this package brings with it. It, and what it loads, is all that may be there with us and not without.
OURS = ("mcore_autopatch", "_mcore_autopatch", "wrapt", "packaging")
#: Seconds after which a program is killed.
LIMIT = 120


def is_ours(name):
    return name.split(".", 1)[0] in OURS


class Sight:
    """What is seen of one program: values by kind and name."""

    def __init__(self):
        self.values = []

    def add(self, name, value):
        """Note a value; the first word of its name, is the kind."""
        kind, _, name = name.partition(" ")
        self.values.append((kind, name, value if isinstance(value, str) else bits(value)))

    def add_all(self, kind, texts):
        self.add(f"{kind} count", str(len(texts)))
        for number, text in enumerate(texts):
            self.add(f"{kind} {number}", text)

    def watch(self, function):
        """Call ``function``, which returns "kind name" -> value, and look at everything that it does on the way."""
        call_handlers, logged = logging.Logger.callHandlers, []

        def see(logger, record):
            # A patch that is applied is INFO, which nobody is shown who has not asked for it.
            if not (is_ours(record.name) and record.levelno <= logging.INFO):
                where = f"{record.pathname}:{record.lineno} {record.funcName}"
                logged.append(f"{record.name} {record.levelname} {where} {record.exc_info!r} {record.getMessage()}")
            call_handlers(logger, record)

        logging.Logger.callHandlers = see
        raised = []
        try:
            for name, value in function().items():
                self.add(name, value)
        except Exception as error:
            raised = list(chain(error))
        finally:
            logging.Logger.callHandlers = call_handlers
        self.add("exception", "\n".join(raised))
        self.add_all("log", logged)
        for name, value in state().items():
            self.add(name, value)

    def write(self, path):
        from mcore_autopatch import outcomes

        applied = {outcome.patch: outcome.status.name for outcome in outcomes()}
        path.with_suffix(".json").write_text(json.dumps({"values": self.values, "patches": applied}))


def chain(error):
    """Yield the exception, and those that led to it, as type and text."""
    while error is not None:
        yield f"{type(error).__module__}.{type(error).__qualname__}: {error}"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def bits(value):
    """Return a text that differs when one bit of a tensor, its shape or its type does, or anything of another value."""
    import torch

    if not torch.is_tensor(value):
        return hashlib.sha256(value if isinstance(value, bytes) else repr(value).encode()).hexdigest()
    data = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(data).hexdigest()}"


def state():
    """Return what a program may leave changed in its process."""
    import numpy as np
    import torch

    loggers = logging.root.manager.loggerDict
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":
            # It ends by itself once its queue is closed.
            thread.join(5)
    return {
        "RNG torch": torch.get_rng_state(),
        "RNG numpy": repr([hashlib.sha256(repr(part).encode()).hexdigest() for part in _numpy_state(np)]),
        "RNG random": random.getstate(),
        "process modules": "\n".join(sorted(name for name in sys.modules if not is_ours(name))),
        "process environment": repr(sorted(item for item in os.environ.items() if item[0] != "MCORE_AUTOPATCH")),
        "process path": repr(sys.path),
        "process warning filters": "\n".join(map(repr, warnings.filters)),
        "process threads": repr(sorted(thread.name for thread in threading.enumerate())),
        "process loggers": "\n".join(
            f"{name} {getattr(loggers[name], 'level', None)} {getattr(loggers[name], 'handlers', None)}"
            for name in sorted(loggers)
            if not is_ours(name)
        ),
        "process root logger": repr((logging.root.level, logging.root.handlers, logging.root.filters)),
        "process signals": repr([signal.getsignal(number) for number in sorted(signal.valid_signals())]),
        "process hooks": repr((sys.excepthook, sys.displayhook, sys.unraisablehook, threading.excepthook)),
        "process torch": repr(
            (
                torch.get_default_dtype(),
                torch.is_grad_enabled(),
                torch.get_num_threads(),
                torch.are_deterministic_algorithms_enabled(),
                torch.get_float32_matmul_precision(),
            )
        ),
    }


def _numpy_state(np):
    name, keys, *rest = np.random.get_state()
    return name, keys.tobytes(), *rest


def seed():
    import numpy as np
    import torch

    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)


def import_megatron_core():
    import megatron.core

    return {"result version": megatron.core.__version__}


def import_what_the_programs_need():
    import megatron.core.dist_checkpointing
    import megatron.core.distributed
    import megatron.core.models.gpt.gpt_model  # noqa: F401

    from mcore_autopatch.reproductions import _checkpoint, _cpu, mtp_recompute_packed_seq  # noqa: F401

    return {}


def import_every_module():
    """Import all modules of megatron.core, of which many want what is not there."""
    import importlib
    import pkgutil

    import megatron.core

    results, names = {}, []
    walk = pkgutil.walk_packages(megatron.core.__path__, "megatron.core.", onerror=names.append)
    names += [module.name for module in walk]
    for name in sorted(names):
        try:
            importlib.import_module(name)
            results[f"import {name}"] = "imported"
        except Exception as error:
            results[f"import {name}"] = "\n".join(chain(error))
    return results


# ---- models ----


def mtp_is_there():
    from megatron.core.models.gpt import gpt_layer_specs

    return hasattr(gpt_layer_specs, "get_gpt_mtp_block_spec")


def trained(model, **inputs):
    """Train for two steps, and return the losses, the gradients of each and the weights in the end."""
    import torch

    from mcore_autopatch.reproductions import _cpu

    optimizer, values = torch.optim.Adam(model.parameters(), lr=0.01), {}
    for step in (1, 2):
        optimizer.zero_grad()
        for name, value in _cpu.train(model, **inputs).items():
            values[f"loss {step}" if name == "loss" else f"gradient {name}, {step}"] = value.clone()
        optimizer.step()
    return {**values, **{f"weight {name}": value for name, value in model.named_parameters()}}


def gpt(mtp_num_layers, *, half=False, inputs=None, recompute=None, **config):
    from mcore_autopatch.reproductions import _cpu

    if recompute:
        config.update(_cpu.recompute(recompute))
    model = _cpu.gpt_model(mtp_num_layers, **config)
    return trained(model.bfloat16() if half else model, **(inputs() if inputs else {}))


def evaluated(mtp_num_layers, *, labels, training=False, **config):
    import torch

    from mcore_autopatch.reproductions import _cpu

    model, inputs = _cpu.gpt_model(mtp_num_layers, **config).train(training), _cpu.batch()
    with torch.set_grad_enabled(training):
        if labels:
            return {"loss evaluation": model(**inputs, labels=inputs["input_ids"].roll(-1, dims=1))}
        logits = model(**inputs)
    gradients = {}
    if training:
        logits.square().mean().backward()
        gradients = {f"gradient {name}": parameter.grad for name, parameter in model.named_parameters()}
    return {"logits": logits, **gradients}


def mask(columns):
    from mcore_autopatch.reproductions import _cpu

    return {"loss_mask": (_cpu.batch()["position_ids"] < columns).float()}


def logged_mtp_loss(columns):
    from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper

    from mcore_autopatch.reproductions import _cpu

    values = trained(_cpu.gpt_model(1), **mask(columns))
    tracker = MTPLossLoggingHelper.tracker
    return {**values, "loss logged": tracker["values"] if "values" in tracker else tracker["loss_values"]}


def packed(mtp_num_layers, *, recompute=None):
    from mcore_autopatch.reproductions import _cpu, mtp_recompute_packed_seq

    config = _cpu.recompute(recompute) if recompute else {}
    values = mtp_recompute_packed_seq.train(mtp_num_layers, **config)
    return {"loss" if name == "loss" else f"gradient {name}": value for name, value in values.items()}


def model_checkpoint():
    """Save a trained model, load it into another one, and train that."""
    from megatron.core import dist_checkpointing

    from mcore_autopatch.reproductions import _cpu

    layers = 1 if mtp_is_there() else None
    saved, other = _cpu.gpt_model(layers), _cpu.gpt_model(layers, seed=2)
    trained(saved)
    with _cpu.shared_folder() as folder:
        dist_checkpointing.save({"model": saved.sharded_state_dict()}, folder)
        loaded = dist_checkpointing.load({"model": other.sharded_state_dict()}, folder)
    other.load_state_dict(loaded["model"])
    return trained(other)


# ---- checkpoints ----


def checkpoint(mode):
    from mcore_autopatch.reproductions import _checkpoint

    return {"result": _checkpoint.round_trip(mode)}


def keep_checkpoints(sight):
    """See the files of each checkpoint before it is removed."""
    import torch

    from mcore_autopatch.reproductions import _cpu

    shared_folder, number = _cpu.shared_folder, 0

    @contextlib.contextmanager
    def seen():
        nonlocal number
        with shared_folder() as folder:
            try:
                yield folder
            except Exception:
                # Or one rank removes the folder while another one has yet to fail in it.
                torch.distributed.barrier()
                raise
            finally:
                number += 1
                for path in sorted(folder.rglob("*")) if torch.distributed.get_rank() == 0 else ():
                    if path.is_file():
                        see = contents_of_metadata if path.name == ".metadata" else Path.read_bytes
                        sight.add(f"file {number}/{path.relative_to(folder)}", see(path))

    _cpu.shared_folder = seen


def contents_of_metadata(path):
    """Return them as a text. Two processes write, and the bytes show which of them was faster."""
    metadata = pickle.loads(path.read_bytes())
    metadata.storage_data = dict(sorted(metadata.storage_data.items(), key=repr))
    return repr(metadata)


# ---- two ranks ----


def data_parallel():
    import torch
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig

    from mcore_autopatch.reproductions import _cpu

    if not torch.cuda.is_available():
        torch.cuda.current_stream = lambda *_: None
    model = _cpu.gpt_model(1 if mtp_is_there() else None)
    parallel = DistributedDataParallel(model.config, DistributedDataParallelConfig(), model)
    inputs = _cpu.batch()
    inputs["input_ids"] = inputs["input_ids"].roll(torch.distributed.get_rank(), dims=1)
    loss = parallel.train()(**inputs, labels=inputs["input_ids"].roll(-1, dims=1))
    loss.mean().backward()
    parallel.finish_grad_sync()
    gradients = {f"gradient {name}": parameter.main_grad for name, parameter in model.named_parameters()}
    return {"loss": loss, **gradients}


def divide(**sizes):
    from megatron.core import parallel_state

    from mcore_autopatch.reproductions import _cpu

    _cpu.start()
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(**sizes)
    return sizes


def tensor_parallel():
    from mcore_autopatch.reproductions import _cpu

    return trained(_cpu.gpt_model(1 if mtp_is_there() else None, **divide(tensor_model_parallel_size=2)))


def pipeline_parallel():
    """Train two stages, sending the hidden states and their gradient by hand."""
    import torch

    from mcore_autopatch.reproductions import _cpu

    # The stages tie their copies of the embedding on the device.
    torch.Tensor.cuda = lambda self, *_, **__: self
    pipeline = divide(pipeline_model_parallel_size=2)
    rank, inputs = torch.distributed.get_rank(), _cpu.batch()
    stage = {"pre_process": rank == 0, "post_process": rank == 1}
    model = _cpu.gpt_model(None, model=stage, pipeline_dtype=torch.float32, **pipeline).train()
    hidden = model(**inputs) if rank == 0 else torch.empty(8, 2, 32)
    torch.distributed.broadcast(hidden.detach(), 0)
    values = {"loss": torch.zeros(1)}
    if rank == 1:
        model.set_input_tensor(hidden.requires_grad_())
        values["loss"] = model(**inputs, labels=inputs["input_ids"].roll(-1, dims=1))
        values["loss"].mean().backward()
    gradient = hidden.grad if rank == 1 else torch.empty_like(hidden)
    torch.distributed.broadcast(gradient, 1)
    if rank == 0:
        hidden.backward(gradient)
    return {**values, **{f"gradient {name}": parameter.grad for name, parameter in model.named_parameters()}}


EXPERTS = {"num_moe_experts": 4, "moe_router_topk": 2, "add_bias_linear": False}
DROPOUT = {"hidden_dropout": 0.1, "attention_dropout": 0.1}
ALONE = {
    "import-every-module": import_every_module,
    "gpt": functools.partial(gpt, None),
    "gpt-bf16": functools.partial(gpt, None, half=True),
    "gpt-dropout": functools.partial(gpt, None, **DROPOUT),
    "gpt-evaluation": functools.partial(evaluated, None, labels=True),
    "gpt-logits": functools.partial(evaluated, None, labels=False),
    "gpt-logits-training": functools.partial(evaluated, None, labels=False, training=True),
    "mtp": functools.partial(gpt, 1),
    "mtp-two-layers": functools.partial(gpt, 2),
    "mtp-dropout": functools.partial(gpt, 1, **DROPOUT),
    "mtp-loss-mask": functools.partial(logged_mtp_loss, 5),
    "mtp-empty-loss-mask": functools.partial(logged_mtp_loss, 0),
    "mtp-per-token-loss": functools.partial(gpt, 1, inputs=functools.partial(mask, 5), calculate_per_token_loss=True),
    "mtp-evaluation": functools.partial(evaluated, 1, labels=True),
    "mtp-logits": functools.partial(evaluated, 1, labels=False),
    "mtp-logits-training": functools.partial(evaluated, 1, labels=False, training=True),
    "moe": functools.partial(gpt, None, **EXPERTS),
    "moe-aux-loss": functools.partial(gpt, None, moe_aux_loss_coeff=0.5, moe_z_loss_coeff=0.5, **EXPERTS),
    "moe-fp64-router": functools.partial(gpt, None, moe_router_dtype="fp64", **EXPERTS),
    "recompute": functools.partial(gpt, None, recompute="uniform", **DROPOUT),
    "recompute-block": functools.partial(gpt, None, recompute="block", **DROPOUT),
    "mtp-recompute": functools.partial(gpt, 1, recompute="uniform", **DROPOUT),
    "mtp-recompute-block": functools.partial(gpt, 1, recompute="block", **DROPOUT),
    "packed": functools.partial(packed, None),
    "packed-recompute": functools.partial(packed, None, recompute="uniform"),
    "packed-mtp": functools.partial(packed, 1),
    "packed-mtp-recompute": functools.partial(packed, 1, recompute="uniform"),
    "packed-mtp-recompute-block": functools.partial(packed, 1, recompute="block"),
    "checkpoint-model": model_checkpoint,
    "checkpoint-sync": functools.partial(checkpoint, "sync"),
    "checkpoint-async": functools.partial(checkpoint, "async"),
    "checkpoint-persistent": functools.partial(checkpoint, "persistent"),
}
TOGETHER = {
    "data-parallel": data_parallel,
    "checkpoint-sync": functools.partial(checkpoint, "sync"),
    "checkpoint-async": functools.partial(checkpoint, "async"),
    "tensor-parallel": tensor_parallel,
    "pipeline-parallel": pipeline_parallel,
}


def redirect(path):
    """Let what this process and its children print go into files."""
    sys.stdout.flush()
    sys.stderr.flush()
    for number, suffix in {1: ".stdout", 2: ".stderr"}.items():
        os.dup2(os.open(path.with_suffix(suffix), os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)


def run(path, program):
    """Run a program with all warnings, as often as they come."""
    sight = Sight()
    keep_checkpoints(sight)
    seed()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sight.watch(program)
        # What is shown of a warning.
        texts = [f"{one.filename}:{one.lineno}: {one.category.__name__}: {one.message}" for one in caught]
    sight.add_all("warning", texts)
    sight.write(path)


def main(folder, *names):
    rank = os.environ.get("RANK")
    if rank is not None:
        # Here the level of the logs is the default one.
        for name, program in TOGETHER.items():
            path = folder / f"rank-{rank}-{name}"
            redirect(path)
            run(path, program)
        return
    logging.root.setLevel(logging.DEBUG)
    # With the warnings that Python shows by itself; they are on stderr.
    for program in (import_megatron_core, import_what_the_programs_need):
        path = folder / program.__name__.replace("_", "-")
        redirect(path)
        sight = Sight()
        sight.watch(program)
        if program is import_megatron_core:
            # torch and NumPy, which are first imported there, have seeded themselves.
            sight.values = [value for value in sight.values if value[0] != "RNG"]
        sight.write(path)
        seed()
    # Nothing of it is collected in the forks, so that the memory stays shared.
    gc.collect()
    gc.freeze()
    ends = {}
    for name in names or ALONE:
        path = folder / name
        child = os.fork()
        if not child:
            redirect(path)
            signal.alarm(LIMIT)
            run(path, ALONE[name])
            # What is done at exit, without taking the interpreter apart, which takes longer than most programs.
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
        ends[name] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    (folder / "ends.stdout").write_text(json.dumps(ends))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
