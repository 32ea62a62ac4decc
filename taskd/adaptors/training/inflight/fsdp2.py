"""Values of an interrupted step in FSDP2 (`fully_shard`): unsharded parameters, gradients, gathers and flags.

Rules:

1. torch's own `reset_iter_state` reshards, and clears the bookkeeping of a step. (It exists from 2.13 on; before that,
   `seams.sharded.restart` takes its place.) It leaves the gradients of unsharded parameters, to which the next backward
   pass would add. It also waits for gathers, which never end once a peer is gone.
2. The flags by which a script accumulates gradients (`set_requires_gradient_sync` …) are restored to those of the last
   commit. Otherwise a rank that was interrupted without communication would meet a new one that communicates.
3. The process groups are handles, and are kept.

Source of the method: torch 2.6, 2.9, 2.12, 2.13 and 2.15, `torch/distributed/fsdp/_fully_shard`.
"""

from collections.abc import Sequence
from typing import Any

import torch

from taskd.adaptors.groups.instances import imported
from taskd.adaptors.seams.parts import IN_SHARDED
from taskd.adaptors.seams.sharded import RESET
from taskd.runtime.worker.frameless import ORIGINAL, Steps, around

Flags = list[list[bool]]
_SWITCHES = ("set_requires_gradient_sync", "set_requires_all_reduce")
_OF_GROUP = ("reduce_grads", "all_reduce_grads", "reshard_after_backward")


def sharded_modules(modules: Sequence[torch.nn.Module]) -> list[Any]:
    """Return the modules with `fully_shard` applied, each once, in order; none if this FSDP2 does not fit."""
    kind = imported("torch.distributed.fsdp", "FSDPModule")
    if kind is None:
        return []
    found = {id(m): m for root in modules for m in root.modules() if isinstance(m, kind)}
    return [] if not found or IN_SHARDED.misfit() else list(found.values())


def sharded_parameters(modules: Sequence[torch.nn.Module]) -> list[torch.Tensor]:
    """Return the parameters in their sharded form (DTensor), whatever form the modules hold at the moment."""
    return [p.sharded_param for m in sharded_modules(modules) for group in _groups(m) for p in group.fsdp_params]


def data_dimensions(modules: Sequence[torch.nn.Module]) -> set[str]:
    """Return the names of the mesh dimensions of these modules. Ranks along them have data of their own."""
    groups = [group for module in sharded_modules(modules) for group in _groups(module)]
    meshes = [getattr(getattr(group, "mesh_info", None), "mesh", None) for group in groups]
    return {name for mesh in meshes if mesh is not None for name in mesh.mesh_dim_names or ()}


class Reductions:
    """The all-reduces of gradients over replicated dimensions, while a rank computes several shares of a batch.

    While they are off, a script may switch communication on again for its last micro-batch (`_SWITCHES`). It then gets
    only the reduction over sharded dimensions.

    Args:
        modules: the sharded modules.
    """

    def __init__(self, modules: Sequence[Any]) -> None:
        self._modules = modules
        groups = [group for module in modules for group in _groups(module)]
        self._begun = [(group, group.all_reduce_grads) for group in groups]

    def switch(self, wanted: bool) -> None:
        """Let the next backward pass all-reduce gradients if `wanted` and if it did at first; else keep them back."""
        for module in self._modules:
            for name in _SWITCHES:
                vars(module).pop(name, None)
                if not wanted:
                    vars(module)[name] = around(getattr(module, name), self._switched)
        for group, begun in self._begun:
            group.all_reduce_grads = wanted and begun

    def _switched(self, *_: Any, **__: Any) -> Steps:
        yield ORIGINAL
        for group, _ in self._begun:
            group.all_reduce_grads = False


def flags(modules: Sequence[Any]) -> Flags:
    """Return the flags of these sharded modules."""
    return [
        [_context(module).is_last_backward, *(getattr(g, name) for g in _groups(module) for name in _OF_GROUP)]
        for module in modules
    ]


def put_flags(modules: Sequence[Any], known: Flags) -> None:
    """Set the flags of these sharded modules to a result of `flags`. Further modules stay as they are."""
    for module, (last, *values) in zip(modules, known, strict=False):
        _context(module).is_last_backward = last
        names = ((group, name) for group in _groups(module) for name in _OF_GROUP)
        for (group, name), value in zip(names, values, strict=False):
            setattr(group, name, value)


def drop_step(modules: Sequence[Any]) -> None:
    """Drop the present step of these sharded modules. Afterwards all parameters are sharded, without gradients."""
    for module in modules:
        module._get_fsdp_state()._comm_ctx.all_gather_state = None
        for group in _groups(module):
            group._all_gather_result = None
            for parameter in group.fsdp_params:
                if "unsharded_accumulated_grad" in vars(parameter):  # else it is the gradient that is dropped below
                    parameter.unsharded_accumulated_grad = None
                parameter.grad_offload_event = None
                unsharded = getattr(parameter, "_unsharded_param", None)
                if unsharded is not None:
                    unsharded.grad = None
    for module in modules:
        if module._get_fsdp_state()._is_root:  # None until a forward pass has made one
            RESET.find().use(module)


def _groups(module: Any) -> list[Any]:
    state = module._get_fsdp_state()
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    return [] if state._fsdp_param_group is None else [state._fsdp_param_group]


def _context(module: Any) -> Any:
    return module._get_fsdp_state()._state_ctx
