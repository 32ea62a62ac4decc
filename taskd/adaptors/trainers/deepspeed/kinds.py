"""The engines that are recovered in place, and the stage of ZeRO of each."""

from importlib import import_module
from typing import Any

import torch

from taskd.adaptors.trainers.deepspeed.stages import FlatStage, PartitionedStage, WholeStage, release_caches


def unfit(engine: Any) -> str:
    """Return why an engine cannot be recovered in place, in a few words; "" if it can."""
    kind = import_module("deepspeed.runtime.engine").DeepSpeedEngine
    if type(engine) is not kind:
        return f"it is a {type(engine).__name__}, not a plain DeepSpeedEngine"
    if engine.optimizer is None or not isinstance(engine.basic_optimizer, torch.optim.Optimizer):
        return f"its optimizer is a {type(engine.basic_optimizer).__name__}, none of torch's kind"
    if engine.torch_autocast_z0_gradscaler is not None or getattr(engine.optimizer, "torch_autocast_gradscaler", None):
        return "torch_autocast has a gradient scaler of its own"
    if engine.mpu is not None or engine.has_moe_layers:
        return "it has model or expert parallel groups"
    if stage_kind(engine) is PartitionedStage and not release_caches():
        return "what ZeRO-3 releases is remembered in an unknown way"
    if stage_kind(engine) is None:
        return f"its optimizer is a {type(engine.optimizer).__name__}"
    return _unfit_zero(engine.optimizer)


def _unfit_zero(zero: Any) -> str:
    used = [text for name, text in _UNUSED.items() if getattr(zero, name, None)]
    if getattr(zero, "zero_hpz_partition_size", 1) > 1:
        used.append("zero_hpz_partition_size")
    counts = getattr(zero, "partition_count", None)
    world = torch.distributed.get_world_size()
    if counts is not None and any(count != world for count in (counts if isinstance(counts, list) else [counts])):
        used.append("partitions over some of the ranks")
    return f"{', '.join(used)}: not known to be recovered exactly" if used else ""


_UNUSED = {
    "cpu_offload": "offloading",
    "offload_optimizer": "offloading",
    "offload_param": "offloading of parameters",
    "swap_optimizer": "swapping",
    "zenflow": "ZenFlow",
    "has_moe_layers": "experts",
    "use_muon": "Muon",
    "zero_quantized_nontrainable_weights": "quantized weights",
}


def stage_kind(engine: Any) -> type[WholeStage] | None:
    """Return the stage by the kind of the engine's optimizer; None if that kind is unknown."""
    if engine.optimizer is engine.basic_optimizer:
        return WholeStage
    for module, name, stage in (
        ("deepspeed.runtime.zero.stage_1_and_2", "DeepSpeedZeroOptimizer", FlatStage),
        ("deepspeed.runtime.zero.stage3", "DeepSpeedZeroOptimizer_Stage3", PartitionedStage),
    ):
        if type(engine.optimizer) is getattr(import_module(module), name):
            return stage
    return None
