"""What of Megatron this taskd does not know how to recover: it trains as it is, and at a fault all start anew."""

from collections.abc import Sequence
from typing import Any


def refusal(chunks: Sequence[Any], optimizers: Sequence[Any]) -> str:
    """What stands in the way of a recovery in place, in words; "" for nothing."""
    for chunk in chunks:
        if type(chunk).__name__ != "DistributedDataParallel" or not hasattr(chunk, "bucket_groups"):
            return f"the model's chunk is a {type(chunk).__name__}, expected Megatron's own DistributedDataParallel"
        if any(_is_quantized(parameter) for parameter in chunk.parameters()):
            return "the model has parameters of 8 bits or fewer, whose scales no part of the state has"
    for optimizer in optimizers:
        inner = getattr(optimizer, "optimizer", None)
        if type(inner).__name__ == "HybridDeviceOptimizer":
            return "the optimizer's state is offloaded (HybridDeviceOptimizer), and was never recovered in a test"
        if getattr(getattr(optimizer, "config", None), "use_precision_aware_optimizer", False):
            return "the optimizer keeps the main parameters itself (use_precision_aware_optimizer)"
    return ""


def _is_quantized(parameter: Any) -> bool:
    return "quantized" in type(parameter).__name__.lower() or type(parameter).__name__ in (
        "Float8Tensor",
        "MXFP8Tensor",
    )
