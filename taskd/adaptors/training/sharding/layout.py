"""Point the process's DDP wrappers at the new groups, with one bucket layout on all ranks.

DDP sums gradients in buckets. After the first backward pass it rebuilds them in the order in which gradients arrive. So
a newcomer starts with other buckets than the survivors have. If their sizes differ, gloo is killed. If only their order
differs, the last bits change.

Rules:

1. A wrapper is *settled* on a rank once its buckets were rebuilt there. The undisturbed run has the first buckets in
   step 1 and settled ones in every later step. A rank continues with those that it has in the step after the target.
2. A rank that has finished the backward pass of a counted step, but has not rebuilt yet, has the order of gradients. It
   rebuilds alone.
3. If ranks differ after that, all take the layout of the lowest rank whose wrapper is as rule 1 requires. A rank that
   receives its state from a rank with this layout gets it with the state (`LentLayouts`); otherwise that rank
   broadcasts it. If all ranks are new, the copies that they load have the layout.
4. A layout is imposed through the reducer's own rebuilding, which gets the layout from rank 0 of its group. For that
   moment the wrapper is in a group of one, whose `broadcast` returns the wanted layout. No user code is run.
5. With `find_unused_parameters=True` DDP never rebuilds, and nothing has to be imposed. With `static_graph=True` a
   process's first iteration communicates otherwise than later ones, so a newcomer cannot join survivors: that is
   refused on all ranks.
6. All living wrappers of the process are pointed, if all ranks have the same (`sameness`).
"""

import logging
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from taskd.adaptors.groups.gathering import gather, number_of
from taskd.adaptors.groups.handle import GroupHandle
from taskd.adaptors.groups.lone import finished
from taskd.adaptors.groups.world import GroupWorld
from taskd.adaptors.groups.wrappers import made_inside
from taskd.adaptors.training.recovery import StateRecovery
from taskd.adaptors.training.sharding.lent_layouts import Layout, LentLayouts
from taskd.adaptors.training.sharding.sameness import (
    Refuse,
    WrapperRow,
    current_wrappers,
    parameters,
    point,
    prove,
    row_of,
    taking_part,
)
from taskd.errors import RebuildError
from taskd.wire.kinds import WorldRank
from taskd.wire.messages import Condition, WorldPlan

_log = logging.getLogger(__name__)

_settled: "weakref.WeakSet[DistributedDataParallel]" = weakref.WeakSet()


@dataclass(frozen=True)
class RepointReport:
    """Result of `repoint` on this rank: the number of wrappers, and how many of them took another rank's layout."""

    wrappers: int
    adopted: int


class LayoutRow(NamedTuple):
    """One wrapper of one rank, as numbers that the ranks compare."""

    settled: int
    layout: int
    group: int
    """Name of the group, as a number."""


_SENT_AHEAD: Final = 4
"""Number of wrappers whose layouts travel with a world's first collective. If a rank has more, another one follows."""


class OwnWrappers:
    """The wrappers of this rank, and `numbers` by which the other ranks compare theirs with them.

    Each rank has equally many numbers. Make it before the groups of `plan` are formed, and keep it until the ranks have
    compared their numbers, because it keeps the wrappers alive.
    """

    def __init__(self, recovery: StateRecovery, plan: WorldPlan) -> None:
        self.wrappers = current_wrappers(recovery)
        counts = recovery.commits > 0 or (bool(plan.adopt) and recovery.condition() is Condition.STEPPED)
        for wrapper in self.wrappers:
            if _is_settled(wrapper) or (counts and _rebuild_alone(wrapper)):
                _settled.add(wrapper)
        rows = [_layout_row(wrapper) for wrapper in self.wrappers[:_SENT_AHEAD]]
        rows += [LayoutRow(0, 0, 0)] * (_SENT_AHEAD - len(rows))
        self.numbers: list[int] = [*row_of(recovery), *chain.from_iterable(rows)]


def repoint(
    recovery: StateRecovery,
    world: GroupWorld,
    plan: WorldPlan,
    refuse: Refuse = _log.warning,
    table: Sequence[Sequence[int]] | None = None,
) -> RepointReport:
    """Point every DDP wrapper of the process at the groups that `world` has formed, and agree on the bucket layouts.

    Collective over the default group. Call it after `GroupWorld.rebuild` and before `restore`. `refuse` gets the reason
    if a wrapper that cannot take part is used all the same. `table` has each rank's numbers of `OwnWrappers`, possibly
    followed by others; `rebuild` can gather them too. Without `table` they are gathered here.

    Raises:
        RefusedError: the ranks have different wrappers, or different groups for them.
        RebuildError: a layout could not be imposed or agreed on, or a peer died.
    """
    try:
        return _repoint(recovery, world, plan, refuse, table or gather(OwnWrappers(recovery, plan).numbers))
    except RuntimeError as error:
        raise RebuildError(
            f"the ranks did not agree on their DDP wrappers: {error}; a peer died: the next generation decides"
        ) from error


def _repoint(
    recovery: StateRecovery, world: GroupWorld, plan: WorldPlan, refuse: Refuse, table: Sequence[Sequence[int]]
) -> RepointReport:
    size = len(WrapperRow._fields)
    ranks = [WrapperRow(*row[:size]) for row in table]
    wrappers = taking_part(recovery, refuse, ranks)
    recovery.lent_layouts = LentLayouts()
    if not wrappers:
        return RepointReport(0, 0)
    if all(row.outside <= _SENT_AHEAD and not row.inside and row.living == ranks[0].living for row in ranks):
        layouts = [list(_in_rows(row[size:])) for row in table]
    else:
        found = gather([[*_layout_row(wrapper)] for wrapper in wrappers])
        layouts = [[LayoutRow(*row) for row in rows] for rows in found]
    groups = [world.current(wrapper.process_group) for wrapper in wrappers]
    for wrapper, group in zip(wrappers, groups, strict=True):
        point(wrapper, group)
        # A step that was cut off between two shares of the batch has left these as they are within `no_sync()`.
        wrapper.require_backward_grad_sync = wrapper.require_forward_param_sync = True
    newcomers = [rank for rank, row in enumerate(ranks) if row.empty]
    return RepointReport(len(wrappers), _agree(wrappers, groups, layouts, newcomers, plan, recovery.lent_layouts))


def _layout_row(wrapper: DistributedDataParallel) -> LayoutRow:
    """Return the row of a wrapper, which is in no group until it is pointed at one."""
    group = wrapper.process_group
    if not isinstance(group, GroupHandle) and dist.is_initialized():
        group = c10d._get_default_group()
    wrapper.reducer._update_process_group(_NOBODY)
    return LayoutRow(wrapper in _settled, number_of(layout_of(wrapper)), number_of([str(group.group_name)]))


def _in_rows(numbers: Sequence[int]) -> Iterator[LayoutRow]:
    for at in range(0, _SENT_AHEAD * len(LayoutRow._fields), len(LayoutRow._fields)):
        yield LayoutRow(*numbers[at : at + len(LayoutRow._fields)])


def layout_of(wrapper: DistributedDataParallel) -> Layout:
    """Return the buckets as lists of parameter indices.

    Call it before the buckets are rebuilt a second time since `_update_process_group`: the reducer caches its answer.
    """
    place = {id(parameter): index for index, parameter in enumerate(parameters(wrapper))}
    with _WithoutMemory():  # type: ignore[no-untyped-call]
        buckets = wrapper.reducer._get_zeros_like_grad_buckets()
    return [[place[id(parameter)] for parameter in bucket.parameters()] for bucket in buckets]


class _WithoutMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode in which `zeros_like` returns a view of one element, because a bucket may be as large as the gradients."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.zeros_like.default:
            like = args[0]
            return torch.empty((), dtype=like.dtype, device=like.device).expand(like.shape)
        return func(*args, **(kwargs or {}))


def record_layouts(recovery: StateRecovery) -> bool:
    """Record the layouts of settled wrappers for copies of the state; return whether a copy of this step can be exact.

    It cannot if a wrapper settles in the next step, with a layout that is not known yet. Call it between two steps.
    Wrappers made inside the training function are left out.
    """
    known = recovery.lent_layouts.own
    wrappers = [wrapper for wrapper in current_wrappers(recovery) if not made_inside(wrapper)]
    for index, wrapper in enumerate(wrappers):
        if not _is_settled(wrapper):
            if recovery.commits == 1 and (wrapper.static_graph or not wrapper.find_unused_parameters):
                return False
        elif index not in known:
            known[index] = layout_of(wrapper)
    return True


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


_NOBODY: Final = _Dictation(None)
"""A group in which a wrapper's reducer forgets its newest answer to `layout_of`."""


def _is_settled(wrapper: DistributedDataParallel) -> bool:
    return wrapper in _settled or bool(wrapper._has_rebuilt_buckets)


def _rebuild_alone(wrapper: DistributedDataParallel) -> bool:
    """Let the reducer rebuild its buckets from a backward pass that has run to its end, if there was one."""
    alone = _Dictation(None)  # held by a variable, since C++ keeps the group alive, but not its Python half
    wrapper.reducer._update_process_group(alone)
    try:
        return bool(wrapper.reducer._rebuild_buckets())
    except RuntimeError:  # the pass was cut off by the fault
        return False


def _agree(
    wrappers: list[DistributedDataParallel],
    groups: list[dist.ProcessGroup],
    layouts: list[list[LayoutRow]],
    newcomers: list[int],
    plan: WorldPlan,
    lent: LentLayouts,
) -> int:
    adopted, target_step = 0, plan.target_step
    for index, wrapper in enumerate(wrappers):
        theirs = [rows_of_rank[index] for rows_of_rank in layouts]
        _refuse_static_graph(wrapper, newcomers, len(theirs))
        fitting = [rank for rank, row in enumerate(theirs) if bool(row.settled) == (target_step > 0)]
        if len({row.layout for row in theirs}) > 1:
            if not fitting:
                raise RebuildError(
                    f"the buckets of DDP wrapper {index} differ between ranks; the models or DDP's arguments differ"
                )
            own, wanted = layout_of(wrapper), theirs[fitting[0]].layout
            adopted += theirs[dist.get_rank()].layout != wanted
            if are_lent(theirs, wanted, plan):
                if theirs[dist.get_rank()].layout == wanted:
                    lent.gives[index] = own
                else:
                    lent.takes[index] = partial(impose, wrapper, group=groups[index])
                    continue
            elif (sent := _send_layout(own, fitting[0], wrapper)) != own:
                impose(wrapper, sent, groups[index])
        elif not fitting and target_step > 0 and plan.loads:  # all are new, and the undisturbed run has settled
            lent.may_take[index] = partial(impose, wrapper, group=groups[index])
        if fitting:
            (_settled.add if target_step > 0 else _settled.discard)(wrapper)
    prove(wrappers, [[row.group for row in rows_of_rank] for rows_of_rank in layouts])
    return adopted


def are_lent(rows: list[LayoutRow], wanted: int, plan: WorldPlan) -> bool:
    """Return whether each rank with another layout receives a state from a rank with the wanted layout."""
    donors = {receiver: transfer.donor for transfer in plan.transfers for receiver in transfer.receivers}
    others = [WorldRank(rank) for rank, row in enumerate(rows) if row.layout != wanted]
    return all(rank in donors and rows[donors[rank]].layout == wanted for rank in others)


def _refuse_static_graph(wrapper: DistributedDataParallel, newcomers: list[int], ranks: int) -> None:
    if wrapper.static_graph and newcomers and len(newcomers) < ranks:
        raise RebuildError(
            f"DDP with static_graph=True cannot take in the new ranks {newcomers}: it communicates otherwise in a "
            "process's first iteration than later; leave static_graph off, or the job restarts all ranks at a fault"
        )


def _send_layout(layout: Layout, source: int, wrapper: DistributedDataParallel) -> Layout:
    """Broadcast the layout of rank `source`: the indices in order, each bucket closed by -1, padded with -2."""
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
