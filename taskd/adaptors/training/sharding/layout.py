"""Point the process's DDP wrappers at the new groups, with one bucket layout on all ranks.

DDP sums gradients in buckets. After the first backward pass it rebuilds them in the order in which gradients arrive, so
a newcomer starts with other buckets than the survivors have: sizes differ, which kills gloo, or only the order, which
changes the last bits.

Rules:

1. A wrapper is *settled* on a rank once its buckets were rebuilt there. The undisturbed run has the first buckets in
   step 1 and settled ones in every later step; a rank goes on with what that run has in the step after the target.
2. A rank that has finished the backward pass of a counted step, but not rebuilt yet, knows the order: it rebuilds
   alone.
3. If ranks differ after that, all take the layout of the lowest rank whose wrapper is as rule 1 wants it.
4. A layout is imposed through the reducer's own rebuilding, which asks rank 0 of its group for the layout. For that
   moment the wrapper stands in a group of one whose `broadcast` answers with the wanted layout. No user code is run.
5. With `find_unused_parameters=True` DDP never rebuilds, and nothing has to be imposed. With `static_graph=True` a
   process's first iteration communicates otherwise than later ones, so a newcomer cannot join survivors: that is
   refused on all ranks.
6. All living wrappers of the process are pointed, if all ranks have the same (`sameness`).
"""

import logging
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

from taskd.adaptors.groups.gathering import gather, number_of
from taskd.adaptors.groups.lone import finished
from taskd.adaptors.groups.world import GroupWorld
from taskd.adaptors.training.recovery import StateRecovery
from taskd.adaptors.training.sharding.sameness import Refuse, name_of, parameters, point, prove, taking_part
from taskd.errors import RebuildError
from taskd.wire.messages import Condition, WorldPlan

_log = logging.getLogger(__name__)
Layout = list[list[int]]

_settled: "weakref.WeakSet[DistributedDataParallel]" = weakref.WeakSet()


@dataclass(frozen=True)
class RepointReport:
    """What `repoint` did on this rank: the wrappers it found, and how many of them took another rank's layout."""

    wrappers: int
    adopted: int
    more: list[list[int]] = field(default_factory=list)
    """The numbers that each rank had sent along."""


def repoint(
    recovery: StateRecovery,
    world: GroupWorld,
    plan: WorldPlan,
    refuse: Refuse = _log.warning,
    more: Sequence[int] = (),
) -> RepointReport:
    """Point every DDP wrapper of the process at the groups that `world` has formed, and agree on the bucket layouts.

    Collective over the default group. Call it after `GroupWorld.rebuild` and before `restore`. `refuse` gets the reason
    when a wrapper that cannot take part is used all the same. `more` are numbers for the other ranks, as many on each:
    a collective of their own would cost a recovery some milliseconds.

    Raises:
        RefusedError: the ranks have other wrappers than one another, or other groups for them.
        RebuildError: a layout could not be imposed or agreed on, or a peer died.
    """
    try:
        return _repoint(recovery, world, plan, refuse, more)
    except RuntimeError as error:
        raise RebuildError(
            f"the ranks did not agree on their DDP wrappers: {error}; a peer died: the next generation decides"
        ) from error


def _repoint(
    recovery: StateRecovery, world: GroupWorld, plan: WorldPlan, refuse: Refuse, more: Sequence[int]
) -> RepointReport:
    wrappers, theirs = taking_part(recovery, refuse, more)
    condition = recovery.condition()
    counts = recovery.commits > 0 or (bool(plan.adopt) and condition is Condition.STEPPED)
    groups = [world.current(wrapper.process_group) for wrapper in wrappers]
    for wrapper, group in zip(wrappers, groups, strict=True):
        if _is_settled(wrapper) or (counts and _rebuild_alone(wrapper)):
            _settled.add(wrapper)
        point(wrapper, group)
        # A step that was cut off between two shares of the batch has left these as they are within `no_sync()`.
        wrapper.require_backward_grad_sync = wrapper.require_forward_param_sync = True
    adopted = _agree(wrappers, groups, condition is Condition.EMPTY, plan.target_step) if wrappers else 0
    return RepointReport(len(wrappers), adopted, theirs)


def layout_of(wrapper: DistributedDataParallel) -> Layout:
    """Return the buckets as lists of parameter indices. Makes a zero tensor of each bucket's size for the moment.

    Valid only right after `_update_process_group`: the reducer caches an older answer once buckets were rebuilt.
    """
    place = {id(parameter): index for index, parameter in enumerate(parameters(wrapper))}
    return [[place[id(p)] for p in bucket.parameters()] for bucket in wrapper.reducer._get_zeros_like_grad_buckets()]


def impose(wrapper: DistributedDataParallel, layout: Layout, group: dist.ProcessGroup) -> None:
    """Give `wrapper` the buckets of `layout` and point it at `group`.

    Raises:
        RebuildError: the reducer did not take the layout.
    """
    point(wrapper, _Dictation(layout))  # the wrapper keeps its Python half alive
    wrapper.reducer._push_all_rebuilt_params()
    taken = wrapper.reducer._rebuild_buckets()
    point(wrapper, group)
    if not taken or layout_of(wrapper) != layout:
        raise RebuildError(
            f"DDP's reducer did not take the layout {layout}; torch {torch.__version__} rebuilds buckets in a way that "
            "this taskd does not know"
        )
    _settled.add(wrapper)


class _Dictation(dist.ProcessGroup):
    """A group of one, in which "rank 0" broadcasts a given layout: indices and bucket count, then bucket sizes."""

    def __init__(self, layout: Layout | None) -> None:
        super().__init__(0, 1)  # type: ignore[call-arg]  # the constructor for subclasses is not in the stubs
        self._answers: list[list[int]] = []
        if layout is not None:
            indices = [index for bucket in layout for index in bucket]
            self._answers = [[*indices, len(layout)], [len(bucket) for bucket in layout]]

    def broadcast(self, tensors: Any, opts: Any = None) -> dist.Work:  # type: ignore[override]
        for tensor in tensors:
            if self._answers:
                tensor.copy_(torch.tensor(self._answers.pop(0), dtype=tensor.dtype))
        return finished(tensors)


def _is_settled(wrapper: DistributedDataParallel) -> bool:
    return wrapper in _settled or bool(wrapper._has_rebuilt_buckets)


def _rebuild_alone(wrapper: DistributedDataParallel) -> bool:
    """Let the reducer rebuild its buckets from the backward pass that it has seen, if it has seen one to its end."""
    alone = _Dictation(None)  # a name of its own: C++ keeps the group alive, but not its Python half
    wrapper.reducer._update_process_group(alone)
    try:
        return bool(wrapper.reducer._rebuild_buckets())
    except RuntimeError:  # the pass was cut off by the fault
        return False


def _agree(
    wrappers: list[DistributedDataParallel], groups: list[dist.ProcessGroup], empty: bool, target_step: int
) -> int:
    layouts = [layout_of(wrapper) for wrapper in wrappers]
    rows = [
        [wrapper in _settled, empty, number_of(layout), name_of(wrapper)]
        for wrapper, layout in zip(wrappers, layouts, strict=True)
    ]
    table = gather(rows)
    adopted = 0
    for index, wrapper in enumerate(wrappers):
        theirs = [rows_of_rank[index] for rows_of_rank in table]
        _refuse_static_graph(wrapper, theirs)
        fitting = [rank for rank, row in enumerate(theirs) if bool(row[0]) == (target_step > 0)]
        if len({row[2] for row in theirs}) > 1:
            if not fitting:
                raise RebuildError(
                    f"the buckets of DDP wrapper {index} differ between ranks; the models or DDP's arguments differ"
                )
            wanted = _send_layout(layouts[index], fitting[0], wrapper)
            if wanted != layouts[index]:
                impose(wrapper, wanted, groups[index])
                adopted += 1
        if fitting:
            (_settled.add if target_step > 0 else _settled.discard)(wrapper)
    prove(wrappers, [[row[3] for row in rows_of_rank] for rows_of_rank in table])
    return adopted


def _refuse_static_graph(wrapper: DistributedDataParallel, rows: list[list[int]]) -> None:
    newcomers = [rank for rank, row in enumerate(rows) if row[1]]
    if wrapper.static_graph and newcomers and len(newcomers) < len(rows):
        raise RebuildError(
            f"DDP with static_graph=True cannot take in the new ranks {newcomers}: it communicates otherwise in a "
            "process's first iteration than later; leave static_graph off, or the job restarts all ranks at a fault"
        )


def _send_layout(layout: Layout, source: int, wrapper: DistributedDataParallel) -> Layout:
    """Broadcast the layout of rank `source`: the indices in order, each bucket closed by -1, filled up with -2."""
    room = 2 * len(parameters(wrapper))
    flat = [number for bucket in layout for number in (*bucket, -1)]
    device = torch.device(c10d._get_object_coll_device())
    tensor = torch.tensor([*flat, *[-2] * (room - len(flat))], dtype=torch.int64, device=device)
    dist.broadcast(tensor, source)
    received: Layout = [[]]
    for number in tensor.tolist():
        if number == -1:
            received.append([])
        elif number >= 0:
            received[-1].append(number)
    return received[:-1]
