"""taskd's expectations of torch for models that are sharded or cut into stages: compared when a script has one."""

from collections.abc import Callable
from typing import Any, Final

from taskd.adaptors.seams.seam import Choice, Fit, Seam, Variant

_FSDP2: Final = "torch.distributed.fsdp._fully_shard"
_STATE: Final = f"{_FSDP2}._fsdp_state"
_GROUP: Final = f"{_FSDP2}._fsdp_param_group"
_PIPELINES: Final = "torch.distributed.pipelining"
_CLEARED: Final = (
    "_all_gather_result",
    "_post_reduce_event",
    "_all_reduce_state",
    "_reshard_after_forward_event",
    "_partial_reduce_output",
)


def restart(module: Any) -> None:
    """Do the work of later versions' `reset_iter_state`: clear the step of this root module."""
    root = module._get_fsdp_state()
    communication, idle = root._comm_ctx, type(root._training_state).IDLE
    communication.all_gather_state = None
    if hasattr(communication, "reduce_scatter_states"):
        communication.reduce_scatter_states.clear()
    else:
        communication.reduce_scatter_state = None
    communication.post_forward_order.clear()
    for state in root._state_ctx.all_states:
        state._modules_to_run_forward.clear()
        state._training_state = idle
        groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
        for group in filter(None, groups):
            if group.device.type != "cpu":
                group.device_handle.synchronize()
            for name in _CLEARED:
                setattr(group, name, None)
            group._post_forward_indices.clear()
            group._training_state = idle
            group._to_sharded()
    root._state_ctx.iter_forward_root = None
    root._state_ctx.post_backward_final_callback_queued = False


def _resetting(module: Any) -> None:
    module.reset_iter_state()


RESET: Final[Choice[Callable[[Any], None]]] = Choice(
    "forgetting a step of FSDP2",
    (
        Variant(
            "a method for it",
            (
                Seam(f"{_FSDP2}._fully_shard", "FSDPModule", Fit.HAS, ("reset_iter_state",)),
                Seam(_STATE, "FSDPState", Fit.SETS, ("_fsdp_param_groups",)),
            ),
            _resetting,
        ),
        Variant(
            "by hand",
            (
                Seam(_GROUP, "FSDPParamGroup", Fit.SETS, (*_CLEARED, "_post_forward_indices", "_training_state")),
                Seam(_GROUP, "FSDPParamGroup", Fit.HAS, ("_to_sharded",)),
                Seam(_STATE, "FSDPState", Fit.SETS, ("_modules_to_run_forward", "_training_state")),
                Seam(
                    _STATE,
                    "FSDPStateContext",
                    Fit.SETS,
                    ("iter_forward_root", "post_backward_final_callback_queued"),
                ),
            ),
            restart,
        ),
    ),
)

SHARDED: Final = (
    RESET,
    Seam(f"{_FSDP2}._fully_shard", "FSDPModule", Fit.HAS, ("_get_fsdp_state",)),
    Seam(_STATE, "FSDPState", Fit.SETS, ("_state_ctx", "_comm_ctx")),
    Seam(_STATE, "FSDPStateContext", Fit.SETS, ("all_states", "is_last_backward")),
    Seam(
        _GROUP,
        "FSDPParamGroup",
        Fit.SETS,
        ("fsdp_params", "_all_gather_result", "reduce_grads", "all_reduce_grads", "reshard_after_backward"),
    ),
    Seam(f"{_FSDP2}._fsdp_param", "FSDPParam", Fit.SETS, ("grad_offload_event",)),
)
"""Seams of FSDP2."""


def _flags(of_one: tuple[str, ...], of_several: tuple[str, ...]) -> tuple[Seam, ...]:
    schedules = f"{_PIPELINES}.schedules"
    return (
        Seam(schedules, "PipelineScheduleSingle", Fit.SETS, ("_stage", *of_one)),
        Seam(schedules, "PipelineScheduleMulti", Fit.SETS, ("_stages", *of_several)),
    )


AGREED: Final[Choice[None]] = Choice(
    "knowing that the stages of a pipeline have agreed",
    (
        Variant(
            "forward and backward",
            _flags(
                ("_stage_forward_initialized", "_stage_backward_initialized"),
                ("_stages_forward_initialized", "_stages_backward_initialized"),
            ),
            None,
        ),
        Variant("both at once", _flags(("_stage_initialized",), ("_stages_initialized",)), None),
    ),
)

PIPELINES: Final = (
    AGREED,
    Seam(f"{_PIPELINES}.schedules", "_PipelineSchedule", Fit.SETS, ("_internal_losses",)),
    Seam(f"{_PIPELINES}.schedules", "PipelineScheduleSingle", Fit.HAS, ("_initialize_stage",)),
    Seam(f"{_PIPELINES}.schedules", "PipelineScheduleMulti", Fit.HAS, ("_initialize_stages",)),
    Seam(f"{_PIPELINES}.stage", "_PipelineStageBase", Fit.SETS, ("submod", "stage_index", "group_size")),
    Seam(f"{_PIPELINES}.stage", "_PipelineStageBase", Fit.HAS, ("clear_runtime_states",)),
)
"""Seams of `torch.distributed.pipelining`."""
