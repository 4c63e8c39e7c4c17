"""Stands in for verl: what its two functions do to megatron-core, in other words than verl's."""

import os
from pathlib import Path

#: A line for each bucket that verl's function has written, whatever process it runs in.
LOG = Path("verl_stand_in.log")
#: The engines whose wrapper has been called, in this order.
CALLS = []


def create_engine():
    """Wrap GPTModel._postprocess, and not ask whether an engine before this one has done so."""
    from megatron.core.models.gpt.gpt_model import GPTModel

    original = GPTModel._postprocess
    engine = CALLS.append

    def _postprocess(self, *args, **kwargs):
        engine("verl")
        mtp_num_layers = self.config.mtp_num_layers
        if not mtp_num_layers:
            self.config.mtp_num_layers = None
        try:
            return original(self, *args, **kwargs)
        finally:
            self.config.mtp_num_layers = mtp_num_layers

    GPTModel._postprocess = _postprocess


def patch_writer():
    """Put a writer of verl's own in the place of the static method, with the format that torch 2.8 asks for."""
    from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync
    from torch.distributed.checkpoint.filesystem import SerializationFormat, _write_item

    @staticmethod
    def write_preloaded_data(
        transform_list, local_proc_idx, write_bucket, results_queue, count_queue, use_fsync, **kwargs
    ):
        with LOG.open("a") as log:
            log.write(f"{os.getpid()}\n")
        try:
            path, storage_key, (objects, tensors) = write_bucket
            with Path(path).open("wb") as stream:
                written = [
                    _write_item(*transform_list, stream, data, item, storage_key, SerializationFormat.TORCH_SAVE)
                    for item, data in [*objects, *tensors]
                ]
        except Exception as error:
            written = error
        results_queue.put((local_proc_idx, written))
        count_queue.get()
        count_queue.task_done()

    FileSystemWriterAsync.write_preloaded_data = write_preloaded_data
