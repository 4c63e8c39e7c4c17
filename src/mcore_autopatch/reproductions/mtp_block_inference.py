"""The programs of mtp-inference: in megatron-core 0.12 and 0.13 they run through other code."""

from mcore_autopatch.reproductions.mtp_inference import CASES

__all__ = ["CASES"]
