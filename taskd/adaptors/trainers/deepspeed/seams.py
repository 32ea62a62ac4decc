"""The names that the adapter overrides, calls or reads in DeepSpeed. Compared before an engine's state is made."""

from typing import Final

from taskd.adaptors.seams.seam import Fit, Line, Seam

_ENGINE, _OPTIMIZER = "deepspeed.runtime.engine", "deepspeed.runtime.base_optimizer"
_ZERO_2, _ZERO_3 = "deepspeed.runtime.zero.stage_1_and_2", "deepspeed.runtime.zero.stage3"
_OFFLOAD, _GATHERING = (
    "deepspeed.runtime.zero.parameter_offload",
    "deepspeed.runtime.zero.partitioned_param_coordinator",
)
_PARTITIONS = "deepspeed.runtime.zero.partition_parameters"
_TIMERS = "deepspeed.utils.timer"
_LOADER = "deepspeed.runtime.dataloader"
_WRITER = "deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine"
COUNTERS: Final = (
    "global_steps",
    "global_samples",
    "micro_steps",
    "skipped_steps",
    "_unmanaged_backward_count",
    "_is_gradient_accumulation_boundary",
    "_step_applied",
    "_global_grad_norm",
)
"""Counters of an engine, besides the states of its model, optimizer and other objects."""
ATTRIBUTES: Final = frozenset(
    {"_external_params", "_original_parameters", "ds_external_parameters", "ds_grads_remaining", "ds_id"}
    | {"applied_pre_backward_ref_cnt", "ds_recompute_parameters", "ds_inflight_param_registry", "ds_model_granularity"}
)
"""Attributes that ZeRO-3 gives to modules."""
PRIVATE: Final = "_PartitionedParameterCoordinator__"

SEAMS: Final[tuple[Line, ...]] = (
    Seam(_ENGINE, "DeepSpeedEngine.step", Fit.ACCEPTS, ("self", "lr_kwargs")),
    Seam(_ENGINE, "DeepSpeedEngine.is_gradient_accumulation_boundary", Fit.EXACT, ("self",)),
    Seam(_ENGINE, "DeepSpeedEngine.managed_gradient_accumulation", Fit.EXACT, ("self",)),
    Seam(_ENGINE, "DeepSpeedEngine.zero_optimization_stage", Fit.EXACT, ("self",)),
    Seam(
        _ENGINE,
        "DeepSpeedEngine",
        Fit.SETS,
        (
            *tuple(name for name in COUNTERS if name != "_is_gradient_accumulation_boundary"),
            "_running_engine_backward",
            "_running_engine_backward_count",
            "_running_engine_step",
            "inside_no_sync_ctxt",
            "basic_optimizer",
            "optimizer",
            "timers",
            "tput_timer",
            "torch_autocast_z0_gradscaler",
        ),
    ),
    Seam(
        _OPTIMIZER,
        "BackwardHookStateManager",
        Fit.SETS,
        ("remaining_grad_acc_hooks", "backward_active_depth", "post_backward_callback_queued"),
    ),
    Seam(_OPTIMIZER, "BackwardHookStateManager.reset_for_new_step", Fit.EXACT, ("self",)),
    Seam(_OPTIMIZER, "ZeROOptimizer", Fit.SETS, ("_backward_hook_state",)),
    Seam(
        _ZERO_2,
        "DeepSpeedZeroOptimizer",
        Fit.SETS,
        (
            "optimizer",
            "bit16_groups",
            "single_partition_of_fp32_groups",
            "real_dp_process_group",
            "partition_count",
            "ipg_buckets",
            "extra_large_param_to_reduce",
            "params_already_reduced",
            "previous_reduced_grads",
            "averaged_gradients",
            "all_grad_tensors",
            "micro_step_id",
            "loss_scaler",
            "overflow",
            "_global_grad_norm",
            "cpu_offload",
            "zenflow",
            "has_moe_layers",
            "torch_autocast_gradscaler",
            "_coalesce_grad_reduction",
        ),
    ),
    Seam(_ZERO_2, "DeepSpeedZeroOptimizer.update_lp_params", Fit.EXACT, ("self",)),
    Seam(_ZERO_2, "DeepSpeedZeroOptimizer._release_ipg_buffers", Fit.EXACT, ("self",)),
    Seam(_ZERO_2, "DeepSpeedZeroOptimizer.reset_partition_gradient_structures", Fit.EXACT, ("self",)),
    Seam(_ZERO_2, "IPGBucket.clear", Fit.EXACT, ("self",)),
    Seam(_ZERO_2, "", Fit.HAS, ("INITIAL_MICRO_STEP_ID",)),
    Seam(
        _ZERO_3,
        "DeepSpeedZeroOptimizer_Stage3",
        Fit.SETS,
        (
            "optimizer",
            "fp16_groups",
            "fp16_partitioned_groups_flat",
            "fp32_partitioned_groups_flat",
            "parameter_offload",
            "persistent_parameters",
            "partition_count",
            "ipg_buckets",
            "param_reduce_events",
            "params_already_reduced",
            "averaged_gradients",
            "micro_step_id",
            "loss_scaler",
            "overflow",
            "_global_grad_norm",
            "offload_optimizer",
            "offload_param",
            "swap_optimizer",
            "zero_hpz_partition_size",
            "zero_quantized_nontrainable_weights",
            "use_muon",
            "torch_autocast_gradscaler",
            "module",
            "_coalesce_grad_reduction",
        ),
    ),
    Seam(
        _ZERO_3, "DeepSpeedZeroOptimizer_Stage3._unflatten_partitioned_parameters", Fit.EXACT, ("self", "sub_group_id")
    ),
    Seam(_ZERO_3, "IPGBucketZ3.clear_params", Fit.EXACT, ("self",)),
    Seam(_OFFLOAD, "", Fit.HAS, ("FWD_MODULE_STACK",)),
    Seam(_OFFLOAD, "DeepSpeedZeRoOffload.get_param_coordinator", Fit.EXACT, ("self",)),
    Seam(
        _GATHERING,
        "PartitionedParameterCoordinator",
        Fit.SETS,
        (
            *tuple(
                PRIVATE + name
                for name in (
                    "inflight_param_registry",
                    "step_id",
                    "trace_mode",
                    "n_available_params",
                    "ongoing_fetch_events",
                    "ongoing_fetch_leaf_module_events",
                    "active_backward_submodules",
                )
            ),
            "hierarchy",
        ),
    ),
    Seam(_GATHERING, "PartitionedParameterCoordinator._clear_trace_structures", Fit.EXACT, ("self",)),
    Seam(_GATHERING, "ZeRoTraceMode", Fit.HAS, ("INVALID",)),
    Seam(_PARTITIONS, "free_param", Fit.ACCEPTS, ("param",)),
    Seam(_PARTITIONS, "ZeroParamStatus", Fit.HAS, ("NOT_AVAILABLE",)),
    Seam(_WRITER, "TorchCheckpointEngine.commit", Fit.EXACT, ("self", "info")),
    Seam(_LOADER, "DeepSpeedDataLoader._create_dataloader", Fit.EXACT, ("self",)),
    Seam(_LOADER, "DeepSpeedDataLoader", Fit.SETS, ("curriculum_learning_enabled", "data")),
    Seam(_LOADER, "", Fit.HAS, ("DataLoader",)),
    Seam(_TIMERS, "SynchronizedWallClockTimer.get_timers", Fit.EXACT, ("self",)),
    Seam(_TIMERS, "ThroughputTimer", Fit.SETS, ("started", "micro_step_count", "global_step_count")),
)
