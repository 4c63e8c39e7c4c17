"""What the reproductions share: megatron-core on a CPU, in one process or in the processes that torchrun started."""

import atexit
import contextlib
import datetime as dt
import functools
import hashlib
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def start() -> None:
    """Join the other processes, if torchrun started any, and set megatron-core up in them. A second call does nothing.

    Source of the calls: megatron-core's own unit tests (tests/unit_tests/test_utilities.py).
    """
    import torch
    from megatron.core import parallel_state, tensor_parallel

    stand_in_for_cuda()
    distributed: Any = torch.distributed
    if distributed.is_initialized():
        return
    # A process that waits for one that failed must not wait for ever.
    options: dict[str, Any] = {"backend": "gloo", "timeout": dt.timedelta(seconds=60)}
    if "RANK" not in os.environ:
        # A store in memory needs no port that somebody else might have taken.
        options.update(store=distributed.HashStore(), rank=0, world_size=1)
    distributed.init_process_group(**options)
    atexit.register(distributed.destroy_process_group)
    parallel_state.initialize_model_parallel()
    if not torch.cuda.is_available():
        # It would save and restore the state of the CUDA random number generator.
        tensor_parallel.get_cuda_rng_tracker().fork = contextlib.nullcontext


def stand_in_for_cuda() -> None:
    """Let the calls of torch.cuda that megatron-core makes without asking succeed where there is no CUDA device."""
    import torch

    cuda: Any = torch.cuda
    if not cuda.is_available():
        cuda.synchronize = lambda *_: None
        cuda.set_device = lambda *_: None
        cuda.current_device = lambda: "cpu"


def with_stand_ins(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``function`` so that it finds the stand-ins in a spawned process too, where nobody has called start()."""
    return functools.partial(_call_with_stand_ins, function)


def _call_with_stand_ins(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    stand_in_for_cuda()
    return function(*args, **kwargs)


@contextlib.contextmanager
def shared_folder() -> Iterator[Path]:
    """Make an empty folder that all processes see, and remove it when they are done with it or this one has failed."""
    import torch

    mine = torch.distributed.get_rank() == 0
    path = [tempfile.mkdtemp(prefix="mcore-autopatch-") if mine else ""]
    try:
        torch.distributed.broadcast_object_list(path)
        yield Path(path[0])
        torch.distributed.barrier()
    finally:
        if mine:
            shutil.rmtree(path[0], ignore_errors=True)


def gpt_model(mtp_num_layers: int | None, *, seed: int = 1, model: dict[str, Any] | None = None, **config: Any) -> Any:
    """Build a GPTModel of two layers, hidden size 32 and a vocabulary of 64, with ``mtp_num_layers`` MTP layers.

    ``config`` overrides the TransformerConfig and ``model`` the arguments of GPTModel; ``mtp_block_spec=None`` among
    the latter leaves the MTP block out. Models of the same seed have the same weights, apart from the MTP block.
    """
    import torch
    from megatron.core.models.gpt import gpt_layer_specs
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    start()
    sizes = {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "use_cpu_initialization": True}
    exact = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
    mtp = {"mtp_num_layers": mtp_num_layers, "mtp_loss_scaling_factor": 0.1}
    # Before 0.12 there is no MTP, and its absence cannot be asked for either.
    if mtp_num_layers is None and not hasattr(gpt_layer_specs, "get_gpt_mtp_block_spec"):
        mtp = {}
    transformer = TransformerConfig(**{**sizes, **exact, **mtp, **config})
    layer = gpt_layer_specs.get_gpt_layer_local_spec(num_experts=transformer.num_moe_experts)
    arguments = {"vocab_size": 64, "max_sequence_length": 16, "position_embedding_type": "rope"}
    if mtp:
        block = gpt_layer_specs.get_gpt_mtp_block_spec(transformer, layer, use_transformer_engine=False)
        arguments["mtp_block_spec"] = block
    built = GPTModel(transformer, layer, **{**arguments, **(model or {})})
    # Drawn by name, because one more module would shift what a shared generator gives to the ones after it.
    for name, parameter in built.named_parameters():
        generator = torch.Generator().manual_seed(seed + zlib.crc32(name.encode()))
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
    return built


def batch(*, sequences: int = 2, length: int = 8) -> dict[str, Any]:
    """Return input_ids and position_ids, ``[b, s]`` each, and a causal attention_mask, ``[1, 1, s, s]``."""
    import torch

    tokens = torch.randint(64, (sequences, length), generator=torch.Generator().manual_seed(2))
    positions = torch.arange(length).expand(sequences, length)
    mask = torch.ones(1, 1, length, length).tril() < 0.5  # noqa: PLR2004
    return {"input_ids": tokens, "position_ids": positions, "attention_mask": mask}


def train(model: Any, **inputs: Any) -> dict[str, Any]:
    """Compute the losses of ``batch()``, ``[b, s]``, and their gradients: "loss" and each parameter's name -> value.

    ``inputs`` overrides and adds to what the model is called with. Raises ValueError if anything is missing or is not
    finite.
    """
    given = {**batch(), **inputs}
    given.setdefault("labels", given["input_ids"].roll(-1, dims=1))
    loss = model.train()(**given)
    loss.mean().backward()
    values = {"loss": loss.detach(), **{name: parameter.grad for name, parameter in model.named_parameters()}}
    wrong = [name for name, value in values.items() if value is None or not value.isfinite().all()]
    if wrong:
        raise ValueError(f"missing or not finite: {len(wrong)} of {len(values)} values, the first is {wrong[0]}")
    return values


def recompute(method: str = "uniform") -> dict[str, Any]:
    """Return what a TransformerConfig needs so that all layers are computed again in the backward pass."""
    import torch

    if not torch.cuda.is_available():
        # Recompute saves and restores the state of the CUDA random number generator.
        for module in (torch.cuda, torch.cuda.random):
            vars(module)["get_rng_state"] = lambda *_, **__: torch.get_rng_state()
    return {"recompute_granularity": "full", "recompute_method": method, "recompute_num_layers": 1}


def compare(values: dict[str, Any], expected: dict[str, Any]) -> str:
    """Return a digest of ``values``, name -> tensor. Raises ValueError unless they equal ``expected`` bit for bit."""
    import torch

    if wrong := [name for name, value in expected.items() if not torch.equal(values[name], value)]:
        raise ValueError(f"{len(wrong)} of {len(expected)} values differ, the first is {wrong[0]}")
    return digest(values)


def digest(values: dict[str, Any]) -> str:
    """Return a text that differs when one bit of ``values``, name -> tensor, differs."""
    data = b"".join(values[name].numpy().tobytes() for name in sorted(values))
    return f"{len(values)} values {hashlib.sha256(data).hexdigest()[:12]}"
