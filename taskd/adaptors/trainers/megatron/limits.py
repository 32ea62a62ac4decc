"""Features of Megatron that this taskd cannot recover: it trains as it is, and at a fault all processes start anew."""

from collections.abc import Sequence
from typing import Any


def refusal(chunks: Sequence[Any], optimizers: Sequence[Any]) -> str:
    """Return the obstacle to a recovery in place, in words; "" for none.

    `optimizers` are those that are chained, and the object that chains them.
    """
    for chunk in chunks:
        if type(chunk).__name__ != "DistributedDataParallel" or not hasattr(chunk, "bucket_groups"):
            return f"the model's chunk is a {type(chunk).__name__}, expected Megatron's own DistributedDataParallel"
        if bound := _bound(getattr(chunk, "config", None), chunk.ddp_config):
            return f"the model is trained with {bound}, which keeps communicators where they cannot be replaced"
        if any(_is_quantized(parameter) for parameter in chunk.parameters()):
            return "the model has parameters of 8 bits or fewer, whose scales no part of the state has"
    for optimizer in optimizers:
        if type(optimizer).__name__ == "LayerWiseDistributedOptimizer":
            return "the optimizer divides whole layers among ranks (LayerWiseDistributedOptimizer)"
        inner = vars(optimizer).get("optimizer")
        if type(inner).__name__ == "HybridDeviceOptimizer":
            return "the optimizer's state is offloaded (HybridDeviceOptimizer), and was never recovered in a test"
        if getattr(getattr(optimizer, "config", None), "use_precision_aware_optimizer", False):
            return "the optimizer keeps the main parameters itself (use_precision_aware_optimizer)"
    return ""


def _bound(config: Any, ddp_config: Any) -> str:
    """Return the setting that builds communicators into objects which outlive a world; "" for none."""
    if getattr(config, "cuda_graph_impl", "none") not in (None, "none"):
        return f"cuda_graph_impl={config.cuda_graph_impl!r}"
    if getattr(config, "tp_comm_overlap", False):
        return "tp_comm_overlap"
    if getattr(config, "moe_token_dispatcher_type", "") == "flex":
        return "moe_token_dispatcher_type='flex'"
    return "nccl_ub" if getattr(ddp_config, "nccl_ub", False) else ""


def _is_quantized(parameter: Any) -> bool:
    return "quantized" in type(parameter).__name__.lower() or type(parameter).__name__ in (
        "Float8Tensor",
        "MXFP8Tensor",
    )
