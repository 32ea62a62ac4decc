"""Obstacles to recovery in place: found as the resilient function is entered, reported, and refused.

Rules:

1. Each obstacle (`Matter`) is one warning of rank 0, with its line in the script and its remedy. The agent gets it from
   every rank, so at a fault all processes start anew at once, without attempts.
2. Nothing is imported to detect an obstacle, because everything that a script uses is imported already.
3. If no part of the state holds a wrapper's parameters, a new process would train them from its own set-up.
"""

import gc
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from taskd.adaptors.groups.instances import imported
from taskd.adaptors.groups.setup_results import Unkept, storages
from taskd.adaptors.groups.sites import script_line
from taskd.adaptors.groups.wrappers import line_of
from taskd.adaptors.seams.parts import IN_PIPELINES, IN_SHARDED
from taskd.adaptors.training.inflight import pipelining
from taskd.adaptors.training.limits.forgotten import forgotten
from taskd.adaptors.training.limits.matter import Matter
from taskd.adaptors.training.limits.unrenewed import of_process
from taskd.adaptors.training.parts.parts import Parts
from taskd.adaptors.training.sharding.partitions import is_partitioned, is_zero, partitions, share_of
from taskd.adaptors.training.sharding.shards import Specs, library_parts, local

logger = logging.getLogger(__name__)
_STATELESS_HOOKS = ("_AllreduceUpcastHookState",)
"""States of comm hooks that carry nothing from step to step: DDP's own mixed precision."""
_SEEN = (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
"""Parts whose own tensors are known, or are no parameters."""


class Refusals:
    """The refusals of one process. They are always sent all together, since its agent keeps only the newest list."""

    def __init__(self, refuse: Callable[..., None], tells: bool) -> None:
        self._refuse = refuse
        self._tells = tells
        self._matters: dict[str, Matter] = {}
        self._unproven: dict[str, Matter] = {}
        self._first_step = self._anew = ""
        self.warned = False
        """True if something was found that is not refused."""
        self.fetches_ahead = False
        """True if the script's text shows a batch that is fetched ahead, which is refused until proven."""
        self.hinders_proof = ""
        """Why the self-check does no step twice in this script; "" if nothing in its text forbids it."""

    @property
    def of_newcomers(self) -> bool:
        """True if no new process is admitted, whatever state it could get."""
        return bool(self._matters)

    def add(self, *matters: Matter) -> None:
        """Refuse these obstacles too, with a warning for each."""
        new = [matter for matter in matters if matter.text not in self._matters]
        if not new:
            return
        self._matters.update((matter.text, matter) for matter in new)
        for matter in new:
            if self._tells:
                logger.warning("%s: at a fault all processes start anew. %s", matter.text, matter.remedy)
        self._say()

    def until_proven(self, *matters: Matter) -> None:
        """Refuse these obstacles too, without a warning, until `prove` is called."""
        if matters:
            self._unproven.update((matter.text, matter) for matter in matters)
            self._say()

    def prove(self, *, exact: bool) -> None:
        """Drop the refusals of `until_proven` if the training is `exact`; else keep them, with a warning."""
        unproven, self._unproven = self._unproven, {}
        if unproven and exact:
            self._say()
        elif unproven:
            self.add(*unproven.values())

    def warn(self, *texts: str) -> None:
        """Warn of findings that are not refused."""
        for text in texts:
            self.warned = True
            self.tell(text)

    def tell(self, text: str) -> None:
        """Log a warning in one process of the job. Unlike `warn`, it does not hinder the self-check."""
        if self._tells:
            logger.warning("%s", text)

    def first_step(self, error: str) -> None:
        """Report the error with which the first step of a new world failed, raised by the script itself; "" for none.

        With a new process in the world it is likely to recur, so no such world is tried again. A world without new
        processes is still tried.
        """
        if error != self._first_step:
            self._first_step = error
            self._say()

    def ask_anew(self, reason: str) -> None:
        """Request that all processes start anew at once."""
        self._anew = reason
        self._say()

    def _say(self) -> None:
        matters = (self._matters | self._unproven).values()
        rebuild = "; ".join(matter.text for matter in matters if matter.no_rebuild)
        texts = [matter.text for matter in matters if not matter.no_rebuild]
        newcomer = "; ".join(filter(None, [*texts, self._first_step]))
        self._refuse(no_rebuild=rebuild, no_newcomer=newcomer, anew=self._anew)


def matters(
    parts: Parts, unkept: Sequence[Unkept] = (), *, joins: bool = False, backs_up: bool = False
) -> list[Matter]:
    """Return all obstacles in this process, as the training function is about to be called.

    A process that `joins` does not search for objects that its set-up has made or forgotten. Its predecessor has
    searched at the same place of the script, and if it found something, no newcomer is admitted. With `backs_up`,
    copies provide the parts that no other rank has.

    `unkept`: collectives of the set-up whose results a new process cannot get.
    """
    found = [] if joins else _of_set_up(parts)
    found.extend(_of_parts(parts))
    found.extend(() if backs_up else alone(parts))
    kept = storages(_tensors(parts)) if unkept else frozenset()
    for result in unkept:
        if not result.storages or not result.storages <= kept:
            remedy = "Let each rank compute it, or share less than 64 KiB in one call."
            found.append(Matter(f"a new process cannot be given what {result.text}", remedy))
    return found


def _of_set_up(parts: Parts) -> list[Matter]:
    """Return an obstacle for each object that the set-up has made outside of the state. Garbage does not count.

    To collect garbage takes the longer, the larger the heap is. No recovery may wait for that, so newcomers never call
    this.
    """
    found = [*_of_wrappers(parts), *_of_stages(parts), *_of_forgotten(parts)]
    if found:
        gc.collect()
        found = [*_of_wrappers(parts), *_of_stages(parts), *_of_forgotten(parts)]
    return [*found, *of_process(parts)]


def has_statistics(parts: Parts) -> bool:
    """Return whether this rank has BatchNorm statistics of its own: DDP broadcasts those of its first rank, or none."""
    return any(
        _has_statistics(module)
        for wrapper in parts.wrappers()
        if not wrapper.broadcast_buffers or dist.get_rank(wrapper.process_group) == 0
        for module in wrapper.modules()
    )


def _has_statistics(module: torch.nn.Module) -> bool:
    """Return whether its forward pass updates running statistics from this rank's batch only."""
    moves = getattr(module, "track_running_stats", False) and getattr(module, "running_mean", None) is not None
    return moves and not isinstance(module, torch.nn.SyncBatchNorm)


def tell_inexact(parts: Parts) -> None:
    """Warn of values that are recovered in place, but not to the last bit."""
    for wrapper in parts.wrappers():
        layers = sum(map(_has_statistics, wrapper.modules()))
        if layers:
            logger.warning(
                "the DistributedDataParallel made at %s has %d BatchNorm layers, whose running statistics are rank 0's "
                "own: if that is replaced, another rank's take their place; the weights are exact. "
                "torch.nn.SyncBatchNorm.convert_sync_batchnorm keeps them equal on all ranks",
                line_of(wrapper),
                layers,
            )


def _tensors(parts: Parts) -> Iterator[torch.Tensor]:
    """Yield the tensors that a donor sends to a new process in any case."""
    yield from map(local, Specs(parts))
    yield from parts.parameters()
    for module in parts.modules:
        yield from module.buffers()


def _of_wrappers(parts: Parts) -> list[Matter]:
    return [matter for wrapper in parts.wrappers() for matter in _of_wrapper(wrapper, parts)]


def _of_wrapper(wrapper: DistributedDataParallel, parts: Parts) -> Iterator[Matter]:
    name = f"the DistributedDataParallel made at {line_of(wrapper)}"
    missing = len(_missing(wrapper.module, parts))
    if missing:
        yield Matter(
            f"{name} has {missing} tensors that no part of the TrainState has",
            "Pass its module, or the wrapper, to TrainState: a new process gets its weights from there.",
        )
    for hook, state in getattr(wrapper, "_comm_hooks", []):
        if type(state).__name__ not in _STATELESS_HOOKS and not isinstance(state, dist.ProcessGroup | None):
            yield Matter(
                f"{name} has the communication hook {getattr(hook, '__qualname__', hook)} with a "
                f"{type(state).__name__}, of which no state is kept at a commit",
                "A hook whose state is None, such as fp16_compress_hook, can be recovered in place.",
                no_rebuild=True,
            )
    if wrapper.static_graph:
        yield Matter(
            f"{name} has static_graph=True, whose first iteration communicates otherwise than later ones",
            "Leave it off for new processes to come in.",
        )
    sparse = [one for one, module in wrapper.module.named_modules() if getattr(module, "sparse", False) is True]
    if sparse:
        yield Matter(
            f"{name} has sparse gradients ({sparse[0] or type(wrapper.module).__name__}), which are in no bucket "
            "that a new process could take over",
            "sparse=False can be recovered in place.",
            no_rebuild=True,
        )
    if getattr(wrapper, "_delay_all_reduce_params", None):
        yield Matter(
            f"{name} has delay_all_reduce_named_params, whose hooks keep their first process group",
            "Leave it off for a recovery in place.",
            no_rebuild=True,
        )


def _missing(module: torch.nn.Module, parts: Parts) -> list[torch.Tensor]:
    """Return the parameters and buffers of a module that would not be sent with the state."""
    tensors = [*module.parameters(), *module.buffers()]
    known = {id(tensor) for module in parts.modules for tensor in (*module.parameters(), *module.buffers())}
    missing = [tensor for tensor in tensors if id(tensor) not in known]
    if missing:
        others = [part for part in parts.replicated.values() if not isinstance(part, _SEEN)]
        places = storages(tensor for part in others for tensor in _leaves(part.state_dict()))
        missing = [tensor for tensor in missing if tensor.numel() and not storages([tensor]) <= places]
    return missing


def _leaves(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _leaves(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(inner)


def _of_parts(parts: Parts) -> Iterator[Matter]:
    line = script_line()
    first = imported("torch.distributed.fsdp", "FullyShardedDataParallel")
    second = imported("torch.distributed.fsdp", "FSDPModule")
    for library in library_parts(parts):
        if library.refusal:
            yield Matter(library.refusal, library.remedy, no_rebuild=True)
    for part, value in parts.replicated.items():
        name = f"the {type(value).__name__} {part!r} of the resilient function entered at {line}"
        if is_zero(value) and not is_partitioned(value):
            yield Matter(
                f"{name} steps inside of the backward pass (overlap_with_ddp)",
                "Without that it can be recovered in place.",
                no_rebuild=True,
            )
        if not isinstance(value, torch.nn.Module):
            continue
        if first and any(isinstance(module, first) for module in value.modules()):
            yield Matter(
                f"{name} is sharded by FullyShardedDataParallel, which keeps its process groups where they cannot be "
                "replaced",
                "fully_shard (FSDP2) can be recovered in place.",
                no_rebuild=True,
            )
        elif second and any(isinstance(module, second) for module in value.modules()) and IN_SHARDED.misfit():
            yield Matter(
                f"{name} is sharded by an FSDP2 that does not fit: {IN_SHARDED.misfit()}",
                "torch 2.13 fits.",
                no_rebuild=True,
            )


def alone(parts: Parts) -> Iterator[Matter]:
    """Yield an obstacle for each kind of state that this rank has and no other."""
    shards = [tensor for tensor in Specs(parts) if _is_cut(tensor) and _copies(tensor) == 1]
    if shards:
        yield Matter(
            f"the TrainState made at {parts.made_at} has {len(shards)} sharded tensors of which each rank keeps what "
            f"no other rank has (the first is of shape {tuple(shards[0].shape)}, {shards[0].placements})",
            "Load your own checkpoint at the start. With a replica of each shard (HSDP, or tensor parallel under data "
            "parallel) a new process gets it from there.",
        )

    for zero in partitions(parts.optimizers):
        if dist.get_world_size() <= share_of(zero)[1]:
            yield Matter(
                f"the TrainState made at {parts.made_at} has a {type(zero).__name__} over all ranks, each of which "
                "keeps what no other rank has",
                "Load your own checkpoint at the start. With process groups of some of the ranks each a new process "
                "gets its part from another group.",
            )

    for part in library_parts(parts):
        if part.alone:
            yield Matter(
                f"the TrainState made at {parts.made_at} has {part.alone}",
                "Load your own checkpoint at the start. With a replica a new process gets it from there.",
            )

    stages = pipelining.stages_of(parts)
    for stage in stages if stages and not IN_PIPELINES.misfit() else ():
        if dist.get_world_size() <= stage.group_size:
            yield Matter(
                f"stage {stage.stage_index} of the pipeline of the resilient function entered at {script_line()} is on "
                "one rank alone",
                "Load your own checkpoint at the start. Under data parallel a new process gets its stage from a rank "
                "that has the same.",
            )


def _is_cut(tensor: Any) -> bool:
    """Return whether this rank has less than all of the tensor."""
    mesh = tensor.device_mesh
    return any(mesh.size(at) > 1 and not placement.is_replicate() for at, placement in enumerate(tensor.placements))


def _copies(tensor: Any) -> int:
    """Return how many ranks have the same part of a sharded tensor. The world may have several meshes like its own."""
    mesh = tensor.device_mesh
    whole: int = math.prod(mesh.size(at) for at, placement in enumerate(tensor.placements) if placement.is_replicate())
    return whole * (dist.get_world_size() // int(mesh.size()))


def _of_stages(parts: Parts) -> Iterator[Matter]:
    stages = pipelining.stages()
    if not stages:
        return
    if IN_PIPELINES.misfit():
        yield Matter(IN_PIPELINES.misfit(), "torch 2.13 fits.", no_rebuild=True)
        return
    for stage in stages:
        name = f"stage {stage.stage_index} of the pipeline of the resilient function entered at {script_line()}"
        missing = len(_missing(stage.submod, parts))
        if missing:
            yield Matter(
                f"{name} has {missing} tensors that no part of the TrainState has",
                "Pass its module to TrainState: a new process gets its weights from there.",
            )


def _of_forgotten(parts: Parts) -> Iterator[Matter]:
    for kind in sorted({type(one).__name__ for one in forgotten(parts)}):
        yield Matter(
            f"the TrainState made at {parts.made_at} was not given the {kind} of its training",
            "Pass it to TrainState by keyword, as all others, or drop it if nothing uses it: a "
            "new process would train on with that of its set-up.",
            no_rebuild=True,
        )
