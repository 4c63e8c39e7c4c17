"""Mixture-of-experts routers cannot run where Transformer Engine is missing."""

from types import ModuleType

from mcore_autopatch.declaration import Affected, Patch

_NAME = "te_general_gemm"


def probe(module: ModuleType) -> bool:
    """Tell whether the router asks whether ``te_general_gemm`` is None in a module that has not bound the name."""
    router = getattr(module, "RouterGatingLinearFunction", None)
    return router is not None and _NAME in router.forward.__code__.co_names and _NAME not in vars(module)


patch = Patch(
    title="mixture-of-experts (MoE) routers crash without Transformer Engine",
    symptom=(
        "Where Transformer Engine is not installed (every Ascend host, many CPU and ROCm ones), the forward pass of a "
        "MoE layer ends in RouterGatingLinearFunction."
    ),
    errors=("NameError: name 'te_general_gemm' is not defined",),
    cause=(
        "moe_utils imports te_general_gemm inside a try block and leaves the name unbound when that import fails; the "
        "router asks `te_general_gemm is not None`."
    ),
    effect=(
        "The name is None where it was unbound, so that the router takes megatron-core's own path through torch.mm, as "
        "0.17 does, with the results of 0.12 and 0.17. Where Transformer Engine is installed nothing changes."
    ),
    upstream="https://github.com/NVIDIA/Megatron-LM/pull/3763",
    fixed_in="0.17.0",
    target="megatron.core.transformer.moe.moe_utils",
    affected=(Affected(megatron_core=">=0.13,<0.17", source="Megatron-LM#3763"),),
    probe=probe,
    additions={_NAME: None},
)
