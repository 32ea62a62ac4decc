"""The parts of the training state that each of ZeRO's stages keeps on one rank, and its data of a step.

Rules:

1. `masters` are the tensors that the basic optimizer steps: no other rank has them from stage 1 on.
2. `drop_step` resets all data of a step to its state right after one, as a new process has it.
3. `complete` makes the weights from all ranks' masters.
"""

from importlib import import_module
from typing import Any

import torch

from taskd.adaptors.trainers.deepspeed.seams import PRIVATE


class WholeStage:
    """Stage 0: every rank has everything, and the module's own state has the weights."""

    divided = False

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def masters(self) -> list[torch.Tensor]:
        """Return the tensors that the optimizer steps."""
        return [parameter for group in self._engine.basic_optimizer.param_groups for parameter in group["params"]]

    def weights(self) -> dict[str, torch.Tensor]:
        """Return the module's tensors that are not made from the masters, by name."""
        named = {**dict(self._engine.module.named_parameters()), **dict(self._engine.module.named_buffers())}
        return {name: tensor.detach() for name, tensor in named.items()}

    def refresh(self) -> None:
        """Update this rank's weights after the masters were filled; here there is nothing to do."""

    def drop_step(self) -> None:
        """Drop an interrupted step: here its gradients."""
        for master in self.masters():
            master.grad = None

    def complete(self) -> None:
        """Make the weights from the masters. Collective."""


class _ZeroStage(WholeStage):
    divided = True

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self._zero = engine.optimizer

    def _others(self, trained: list[Any]) -> dict[str, torch.Tensor]:
        known = set(map(id, trained))
        frozen = {name: one for name, one in self._engine.module.named_parameters() if id(one) not in known}
        return {**frozen, **dict(self._engine.module.named_buffers())}

    def _drop_hooks(self) -> None:
        hooks = self._zero._backward_hook_state
        hooks.backward_active_depth = hooks.remaining_grad_acc_hooks = 0
        hooks.reset_for_new_step()
        self._zero._coalesce_grad_reduction = False


class FlatStage(_ZeroStage):
    """Stages 1 and 2: weights are whole on each rank, in flat tensors of which each rank steps its part."""

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self._first_micro_step = import_module("deepspeed.runtime.zero.stage_1_and_2").INITIAL_MICRO_STEP_ID

    def masters(self) -> list[torch.Tensor]:
        """Return this rank's parts of the flat groups."""
        return list(self._zero.single_partition_of_fp32_groups)

    def weights(self) -> dict[str, torch.Tensor]:
        """Return frozen parameters and buffers."""
        trained = [parameter for group in self._zero.bit16_groups for parameter in group]
        return {name: tensor.detach() for name, tensor in self._others(trained).items()}

    def drop_step(self) -> None:
        """Drop gradients, their buckets, the records of reductions, and the hooks' counts."""
        zero = self._zero
        for parameter in (one for group in zero.bit16_groups for one in group):
            parameter.grad = parameter.grad_accum = None
        for master in self.masters():
            master.grad = None
        for bucket in zero.ipg_buckets.values():
            bucket.clear()
            bucket.index = 0
        zero._release_ipg_buffers()
        for held in (
            zero.extra_large_param_to_reduce,
            zero.previous_reduced_grads,
            zero.averaged_gradients,
            zero.all_grad_tensors,
        ):
            held.clear()
        zero.params_already_reduced[:] = [False] * len(zero.params_already_reduced)
        zero.reset_partition_gradient_structures()
        zero.micro_step_id = self._first_micro_step
        self._drop_hooks()

    def complete(self) -> None:
        """Make the weights from all ranks' parts."""
        self._zero.update_lp_params()


class PartitionedStage(_ZeroStage):
    """Stage 3: each rank has a part of the weights too; whole ones are there while a module runs."""

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self._offload = import_module("deepspeed.runtime.zero.parameter_offload")
        self._gathering = import_module("deepspeed.runtime.zero.partitioned_param_coordinator")
        self._free = import_module("deepspeed.runtime.zero.partition_parameters").free_param
        self._depth = len(self._offload.FWD_MODULE_STACK)
        self._external = [(module, dict(module._external_params)) for module in engine.module.modules()]
        self._are_external = [(one, one.is_external_param) for one in engine.module.parameters()]

    def masters(self) -> list[torch.Tensor]:
        """Return this rank's parts of the sub-groups."""
        return list(self._zero.fp32_partitioned_groups_flat)

    def weights(self) -> dict[str, torch.Tensor]:
        """Return this rank's part of frozen parameters, and buffers."""
        trained = [parameter for group in self._zero.fp16_groups for parameter in group]
        others = self._others(trained)
        return {name: getattr(tensor, "ds_tensor", tensor).detach() for name, tensor in others.items()}

    def refresh(self) -> None:
        """Copy this rank's masters into its part of the weights."""
        zero = self._zero
        for number, (low, high) in enumerate(
            zip(zero.fp16_partitioned_groups_flat, zero.fp32_partitioned_groups_flat, strict=True)
        ):
            low.data.copy_(high.data)
            zero._unflatten_partitioned_parameters(number)

    def drop_step(self) -> None:
        """Drop gradients and buckets, gathers under way and their results, and the trace of when modules need them."""
        zero = self._zero
        for master in self.masters():
            master.grad = None
        for group in zero.optimizer.param_groups:
            group["params"] = []
        for bucket in zero.ipg_buckets.values():
            bucket.clear_params()
        zero.params_already_reduced.update(dict.fromkeys(zero.params_already_reduced, False))
        zero.averaged_gradients = {}
        zero.param_reduce_events.clear()
        zero.micro_step_id = 0
        self._drop_hooks()
        self._drop_gathers()

    def _drop_gathers(self) -> None:
        coordinator = self._zero.parameter_offload.get_param_coordinator()
        getattr(coordinator, PRIVATE + "inflight_param_registry").clear()
        coordinator._clear_trace_structures()
        for cache in release_caches():
            cache.cache_clear()
        for held in ("ongoing_fetch_events", "ongoing_fetch_leaf_module_events", "active_backward_submodules"):
            getattr(coordinator, PRIVATE + held).clear()
        setattr(coordinator, PRIVATE + "trace_mode", self._gathering.ZeRoTraceMode.INVALID)
        setattr(coordinator, PRIVATE + "step_id", 0)
        setattr(coordinator, PRIVATE + "n_available_params", 0)
        coordinator.hierarchy = 0
        for parameter in self._zero.module.parameters():
            parameter.grad = None
            parameter.ds_active_sub_modules.clear()
            self._free(parameter)
        for module in self._zero.module.modules():
            module.ds_recompute_parameters.clear()
            vars(module).update({name: 0 for name in _COUNTS if name in vars(module)})
            if hasattr(module._parameters, "_in_forward"):
                module._parameters._in_forward = False
        del self._offload.FWD_MODULE_STACK[self._depth :]
        self._forget_what_was_found()

    def _forget_what_was_found(self) -> None:
        """Forget which modules use others' parameters: forward passes find that, and a new process has had none."""
        for module, known in self._external:
            module._external_params.clear()
            module._external_params.update(known)
        for parameter, is_external in self._are_external:
            parameter.is_external_param = is_external

    def complete(self) -> None:
        """Gather the small weights, which stay gathered between steps."""
        kept = self._zero.persistent_parameters
        if kept:
            kept[0].all_gather(kept)


def release_caches() -> list[Any]:
    """Return the caches of ZeRO-3's releases behind each module, by an older trace: another process has none."""
    kind = import_module("deepspeed.runtime.zero.partitioned_param_coordinator").PartitionedParameterCoordinator
    looked: list[Any] = [getattr(kind, PRIVATE + "params_to_release", None)]
    for one in looked:  # decorators hold the function that they decorate
        looked += [
            cell.cell_contents for cell in getattr(one, "__closure__", None) or () if callable(cell.cell_contents)
        ]
    return [one for one in looked if hasattr(one, "cache_clear")]


_COUNTS = ("ds_grads_remaining", "applied_pre_backward_ref_cnt")
