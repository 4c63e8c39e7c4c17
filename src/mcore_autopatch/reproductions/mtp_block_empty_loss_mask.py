"""The programs of mtp-empty-loss-mask: in megatron-core 0.12 and 0.13 they run through other code."""

from mcore_autopatch.reproductions.mtp_empty_loss_mask import CASES

__all__ = ["CASES"]
