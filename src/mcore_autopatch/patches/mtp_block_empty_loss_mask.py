"""As mtp-empty-loss-mask, for releases in which the block of multi-token prediction (MTP) layers computes the loss."""

from types import ModuleType

from mcore_autopatch.declaration import Affected, Patch
from mcore_autopatch.patches import mtp_empty_loss_mask


def probe(module: ModuleType) -> bool:
    """Tell whether ``MultiTokenPredictionBlock.forward`` divides the MTP loss by a count that may be zero."""
    return mtp_empty_loss_mask.divides_by_count(module.MultiTokenPredictionBlock.forward)


patch = Patch(
    title=f"{mtp_empty_loss_mask.patch.title}, in megatron-core 0.12 and 0.13",
    symptom=mtp_empty_loss_mask.patch.symptom,
    errors=mtp_empty_loss_mask.patch.errors,
    cause=(
        "MultiTokenPredictionBlock.forward divides the MTP loss by the number of tokens in the loss mask after rolling "
        "it by one. It is 0 when no token of the micro-batch counts. From 0.14 on, GPTModel does the same, and "
        "mtp-empty-loss-mask corrects it there."
    ),
    effect=(
        f"{mtp_empty_loss_mask.patch.effect} Others who import roll_tensor from this module also get a count of 1 in "
        "the place of 0; the rolled tensor is the same for all."
    ),
    upstream=mtp_empty_loss_mask.patch.upstream,
    fixed_in="0.14.0",
    target="megatron.core.transformer.multi_token_prediction",
    affected=(Affected(megatron_core=">=0.12,<0.14", source="Megatron-LM#3396"),),
    probe=probe,
    # The block looks this module global up; the token ids and labels that it also rolls do not ask for the count.
    replacements={"roll_tensor": mtp_empty_loss_mask.with_a_count_to_divide_by},
)
