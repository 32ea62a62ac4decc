"""The names that taskd reads or overrides in Ray Train."""

from typing import Final

from taskd.adaptors.seams.seam import Fit, Line, Seam

_TORCH: Final = "ray.train.torch.config"
_GROUPS: Final = "ray.train.v2._internal.execution.worker_group"
_ON: Final = ("self", "worker_group", "backend_config")

RAY_TRAIN: Final[tuple[Line, ...]] = (
    Seam(_TORCH, "TorchConfig", Fit.HAS, ("backend_cls",)),
    Seam(_TORCH, "_TorchBackend.on_start", Fit.EXACT, _ON),
    Seam(_TORCH, "_TorchBackend.on_shutdown", Fit.EXACT, _ON),
    Seam("ray.train.backend", "Backend", Fit.HAS, ("has_replica_groups",)),
    Seam(_GROUPS, "ReplicaGroup", Fit.HAS, ("execute", "execute_single_async", "get_workers", "is_active")),
    Seam(_GROUPS, "WorkerGroup", Fit.HAS, ("replace_replica_group", "get_replica_groups")),
    Seam(
        "ray.train.v2._internal.execution.context",
        "DistributedContext",
        Fit.SETS,
        ("world_rank", "world_size"),
    ),
    Seam(
        "ray.train.v2._internal.execution.context",
        "TrainContext",
        Fit.SETS,
        ("current_report_index", "storage_context"),
    ),
    Seam("ray.train.v2._internal.execution.context", "get_train_context", Fit.EXACT, ()),
)
"""Replica groups came with version 2 of Ray Train; RAY_TRAIN_V2_ENABLED=1 switches that on in older releases."""
