"""Objects outside of the training state that are not renewed with the process groups: found and refused by name.

Rules:

1. They are searched for once, as the resilient function is entered. A process that joins does not search: if one of
   them existed, it would not have been admitted.
2. Only objects of modules that the script has imported can exist. Nothing else is searched for.
"""

import sys
from collections.abc import Iterator
from typing import Final

from torch.nn.parallel import DistributedDataParallel

from taskd.adaptors.groups.instances import imported, instances
from taskd.adaptors.groups.sites import script_line
from taskd.adaptors.groups.wrappers import line_of
from taskd.adaptors.training.limits.matter import Matter
from taskd.adaptors.training.parts.parts import Parts
from taskd.adaptors.training.sharding.own_state import own_state

_STEPPING_HOOKS: Final = ("hook_then_optimizer", "hook_with_zero", "apply_optim_in_backward_hook")
"""Communication hooks of torch's own that step an optimizer inside the backward pass."""


def of_process(parts: Parts) -> Iterator[Matter]:
    """Yield an obstacle for each such object in this process."""
    where = f"the resilient function entered at {script_line()}"
    yield from _of_remote_calls(where)
    yield from _of_objects(parts, where)
    yield from _of_early_steps(parts, where)


def _of_remote_calls(where: str) -> Iterator[Matter]:
    rpc = sys.modules.get("torch.distributed.rpc")
    if rpc is None or not hasattr(rpc, "get_worker_info"):
        return
    try:
        name = rpc.get_worker_info().name
    except RuntimeError:  # it has not been initialized
        return
    yield Matter(
        f"{where} runs beside torch.distributed.rpc (this is its worker {name!r}), whose connections stay broken",
        "End it with rpc.shutdown() before the training, for a recovery in place.",
        no_rebuild=True,
    )


def _of_objects(parts: Parts, where: str) -> Iterator[Matter]:
    kinds = {
        "engine": imported("deepspeed.runtime.engine", "DeepSpeedEngine"),
        "averager": imported("torch.distributed.algorithms.model_averaging.averagers", "ModelAverager"),
        "wrapper": imported("torch.distributed.fsdp", "FullyShardedDataParallel"),
    }
    found = instances(*filter(None, kinds.values())) if any(kinds.values()) else []
    known = {id(module) for part in parts.modules for module in part.modules()}
    renewed = {id(one) for own in filter(None, map(own_state, parts.replicated.values())) for one in own.renews}
    for one in found:
        if id(one) in renewed:
            continue
        if kinds["engine"] is not None and isinstance(one, kinds["engine"]):
            yield Matter(
                f"{where} trains with a DeepSpeedEngine, which has parts of the state and counters of its own",
                "Make its state with taskd.deepspeed.state(engine), or load its newest checkpoint at the start.",
                no_rebuild=True,
            )
        elif kinds["averager"] is not None and isinstance(one, kinds["averager"]):
            yield Matter(
                f"{where} averages its models by a {type(one).__name__}: between two averages no rank has the weights "
                "of another",
                "Under DDP without post-local SGD a new process gets its weights from another rank.",
                no_rebuild=True,
            )
        elif id(one) not in known:
            yield Matter(
                f"{where} has a FullyShardedDataParallel that is no part of the TrainState, and which keeps its "
                "process groups where they cannot be replaced",
                "fully_shard (FSDP2) can be recovered in place.",
                no_rebuild=True,
            )


def _of_early_steps(parts: Parts, where: str) -> Iterator[Matter]:
    remedy = "Step the optimizer after the backward pass for a recovery in place."
    for wrapper in parts.wrappers():
        for hook in _hooks(wrapper):
            yield Matter(
                f"the DistributedDataParallel made at {line_of(wrapper)} has the communication hook {hook}, by which "
                "an optimizer steps inside the backward pass",
                remedy,
                no_rebuild=True,
            )
    early = sum(hasattr(one, "_in_backward_optimizers") for module in parts.modules for one in module.parameters())
    if early:
        yield Matter(
            f"{where} trains {early} parameters with optimizers that step inside the backward pass",
            remedy,
            no_rebuild=True,
        )


def _hooks(wrapper: DistributedDataParallel) -> Iterator[str]:
    for hook, _ in getattr(wrapper, "_comm_hooks", []):
        name = str(getattr(hook, "__qualname__", hook))
        if any(known in name for known in _STEPPING_HOOKS):
            yield name.rpartition(".")[2]
