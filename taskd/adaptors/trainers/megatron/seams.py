"""All names of megatron-core that this adapter calls, reads or resets. It was read and run in 0.16.1."""

from typing import Final

from taskd.adaptors.seams.seam import Fit, Line, Seam

PACKAGE: Final = "megatron-core"
_BUFFERS: Final = "megatron.core.distributed.param_and_grad_buffer"
_WRAPPER: Final = "megatron.core.distributed.distributed_data_parallel"
_OPTIMIZER: Final = "megatron.core.optimizer.optimizer"
_DISTRIBUTED: Final = "megatron.core.optimizer.distrib_optimizer"

TABLE: Final[tuple[Line, ...]] = (
    Seam(
        _BUFFERS,
        "_ParamAndGradBucketGroup",
        Fit.SETS,
        (
            "golden_per_param_grad_ready_counts",
            "per_param_grad_ready_counts",
            "is_last_microbatch",
            "is_first_batch",
            "param_gather_handle",
            "param_gather_dispatched",
            "grad_reduce_handle",
        ),
    ),
    Seam(
        _WRAPPER,
        "DistributedDataParallel",
        Fit.SETS,
        (
            "ddp_config",
            "dp_cp_group",
            "expt_dp_group",
            "tp_group",
            "pp_group",
            "bucket_groups",
            "expert_parallel_bucket_groups",
            "expert_parallel_buffers",
        ),
    ),
    Seam(_WRAPPER, "DistributedDataParallel.start_param_sync", Fit.ACCEPTS, ("force_sync",)),
    Seam(_OPTIMIZER, "ChainedOptimizer", Fit.SETS, ("chained_optimizers",)),
    Seam(_OPTIMIZER, "MegatronOptimizer", Fit.SETS, ("optimizer", "config")),
    Seam(_OPTIMIZER, "MixedPrecisionOptimizer", Fit.SETS, ("grad_scaler",)),
    Seam(_OPTIMIZER, "Float16OptimizerWithFloat16Params._copy_main_params_to_model_params", Fit.EXACT, ("self",)),
    Seam(_DISTRIBUTED, "DistributedOptimizer._copy_main_params_to_model_params", Fit.EXACT, ("self",)),
    Seam(_DISTRIBUTED, "DistributedOptimizer", Fit.SETS, ("data_parallel_group",)),
    Seam("megatron.core.optimizer.grad_scaler", "MegatronGradScaler", Fit.SETS, ("_scale",)),
    Seam(
        "megatron.core.optimizer.grad_scaler",
        "DynamicGradScaler",
        Fit.SETS,
        ("_growth_tracker", "_hysteresis_tracker"),
    ),
    Seam("megatron.core.optimizer_param_scheduler", "OptimizerParamScheduler", Fit.SETS, ("num_steps",)),
    Seam("megatron.core.optimizer_param_scheduler", "OptimizerParamScheduler.step", Fit.EXACT, ("self", "increment")),
    Seam("megatron.core.tensor_parallel.random", "get_cuda_rng_tracker", Fit.ACCEPTS),
    Seam("megatron.core.tensor_parallel.random", "CudaRNGStatesTracker.get_states", Fit.EXACT, ("self",)),
    Seam("megatron.core.tensor_parallel.random", "CudaRNGStatesTracker.set_states", Fit.EXACT, ("self", "states")),
    Seam("megatron.core.timers", "Timers", Fit.SETS, ("_timers",)),
    Seam("megatron.core.timers", "Timer", Fit.SETS, ("_started",)),
    Seam("megatron.core.rerun_state_machine", "", Fit.HAS, ("_GLOBAL_RERUN_STATE_MACHINE",)),
    Seam("megatron.core.rerun_state_machine", "RerunStateMachine", Fit.SETS, ("state", "current_iteration")),
    Seam("megatron.core.rerun_state_machine", "RerunState", Fit.HAS, ("NOT_RUNNING_YET",)),
)
