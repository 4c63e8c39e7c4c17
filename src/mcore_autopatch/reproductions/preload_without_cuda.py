"""The checkpoint writer copies tensors to the host where there is no CUDA device, also in a worker of its own."""

from collections.abc import Callable

from mcore_autopatch.reproductions import _checkpoint


def _preload() -> str:
    """Copy in this process; to be run before a case that gives it stand-ins for torch.cuda."""
    import torch
    from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync

    preload = getattr(FileSystemWriterAsync, "preload_tensors", None)
    if preload is None:
        return "this megatron-core copies elsewhere"
    tensor = torch.arange(5)
    ((_, _, (_, ((_, copied),))),) = preload([("file", "key", ([], [("item", tensor)]))], non_blocking=True)
    if not torch.equal(copied, tensor):
        raise ValueError(f"copied {tensor}, got {copied}")
    return "a tensor is copied"


def _persistent() -> str:
    if not _checkpoint.has_persistent_worker():
        return "this megatron-core has no persistent worker"
    return _checkpoint.round_trip("persistent", stand_ins=False)


#: The copy itself, and a checkpoint that goes through a spawned worker, which knows of no stand-ins for torch.cuda.
CASES: dict[str, Callable[[], str]] = {"preload": _preload, "persistent": _persistent}
