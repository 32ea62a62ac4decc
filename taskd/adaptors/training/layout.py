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
6. All living wrappers of the process are pointed, whether or not the training state holds them: a state may be given
   the bare model. Their number, order and parameters are compared across ranks, and one collective over the group of
   each proves that all its holders are in the same one.
"""

import gc
import hashlib
import weakref
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

from taskd.adaptors.groups.lone import finished
from taskd.adaptors.groups.world import World
from taskd.adaptors.groups.wrappers import line_of
from taskd.adaptors.training.state import TrainState
from taskd.errors import RebuildError, RefusedError
from taskd.wire.messages import Condition, WorldPlan

Layout = list[list[int]]

_settled: "weakref.WeakSet[DistributedDataParallel]" = weakref.WeakSet()


@dataclass(frozen=True)
class RepointReport:
    """What `repoint` did on this rank: the wrappers it found, and how many of them took another rank's layout."""

    wrappers: int
    adopted: int


def repoint(state: TrainState, world: World, plan: WorldPlan) -> RepointReport:
    """Point every DDP wrapper of the process at the groups that `world` has formed, and agree on the bucket layouts.

    Collective over the default group. To be called after `World.rebuild` and before `restore`.

    Raises:
        RefusedError: the ranks have other wrappers than one another.
        RebuildError: a layout could not be imposed or agreed on, or a peer died.
    """
    try:
        return _repoint(state, world, plan)
    except RuntimeError as error:
        raise RebuildError(
            f"the ranks did not agree on their DDP wrappers: {error}; a peer died: the next generation decides"
        ) from error


def _repoint(state: TrainState, world: World, plan: WorldPlan) -> RepointReport:
    wrappers = _compared(state)
    condition = state.condition()
    counts = state.has_committed or (plan.adopt and condition is Condition.STEPPED)
    groups = [world.current(wrapper.process_group) for wrapper in wrappers]
    for wrapper, group in zip(wrappers, groups, strict=True):
        if _is_settled(wrapper) or (counts and _rebuild_alone(wrapper)):
            _settled.add(wrapper)
        _point(wrapper, group)
        # A step that was cut off between two shares of the batch has left these as they are within `no_sync()`.
        wrapper.require_backward_grad_sync = wrapper.require_forward_param_sync = True
    adopted = _agree(wrappers, groups, condition is Condition.EMPTY, plan.target_step) if wrappers else 0
    for index, wrapper in enumerate(wrappers):
        _prove(index, wrapper)
    return RepointReport(len(wrappers), adopted)


def _compared(state: TrainState) -> list[DistributedDataParallel]:
    """Return the living wrappers, when every rank has the same."""
    wrappers = state.parts.wrappers()
    table = _all(_row([len(wrappers)]))
    if any(int(row[0]) != len(wrappers) for row in table):
        del wrappers
        gc.collect()  # what a script has dropped may live on in a cycle, here and not there
        wrappers = state.parts.wrappers()
        table = _all(_row([len(wrappers)]))
    counts = [int(row[0]) for row in table]
    lines = ", ".join(line_of(wrapper) for wrapper in wrappers) or "none"
    if len(set(counts)) > 1:
        raise RefusedError(
            f"the ranks have {counts} DDP wrappers, expected the same number; those of rank {dist.get_rank()} were "
            f"made at: {lines}. Make each one before the resilient function, or anew whenever it is entered"
        )
    models = [_digest([list(parameter.shape) for parameter in _parameters(wrapper)]) for wrapper in wrappers]
    different = [rank for rank, row in enumerate(_all(_row([0, *models]))) if row.tolist() != [0, *models]]
    if different:
        raise RefusedError(
            f"ranks {different} have DDP wrappers of other models, or in another order, than rank {dist.get_rank()}, "
            f"whose were made at: {lines}; expected the same on all ranks"
        )
    return wrappers


def _prove(index: int, wrapper: DistributedDataParallel) -> None:
    """Have all holders of a wrapper meet in its own group, before a step relies on that.

    Raises:
        RebuildError: they do not.
    """
    group = wrapper.process_group
    mine = _row([index, _digest([str(group.group_name)]), len(_parameters(wrapper))])
    everyone = [torch.zeros_like(mine) for _ in range(group.size())]
    dist.all_gather(everyone, mine, group=group)
    if any(not torch.equal(mine, theirs) for theirs in everyone):
        raise RebuildError(
            f"DDP wrapper {index}, made at {line_of(wrapper)}, meets {[theirs.tolist() for theirs in everyone]} in its "
            f"group, expected {mine.tolist()} of all; the scripts of the ranks differ"
        )


def _row(numbers: list[int]) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64, device=torch.device(c10d._get_object_coll_device()))


def layout_of(wrapper: DistributedDataParallel) -> Layout:
    """Return the buckets as lists of parameter indices. Makes a zero tensor of each bucket's size for the moment.

    Valid only right after `_update_process_group`: the reducer caches an older answer once buckets were rebuilt.
    """
    place = {id(parameter): index for index, parameter in enumerate(_parameters(wrapper))}
    return [[place[id(p)] for p in bucket.parameters()] for bucket in wrapper.reducer._get_zeros_like_grad_buckets()]


def impose(wrapper: DistributedDataParallel, layout: Layout, group: dist.ProcessGroup) -> None:
    """Give `wrapper` the buckets of `layout` and point it at `group`.

    Raises:
        RebuildError: the reducer did not take the layout.
    """
    _point(wrapper, _Dictation(layout))  # the wrapper keeps its Python half alive
    wrapper.reducer._push_all_rebuilt_params()
    taken = wrapper.reducer._rebuild_buckets()
    _point(wrapper, group)
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


def _point(wrapper: DistributedDataParallel, group: dist.ProcessGroup) -> None:
    wrapper._update_process_group(group)  # type: ignore[no-untyped-call]


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


def _parameters(wrapper: DistributedDataParallel) -> list[torch.nn.Parameter]:
    """Return the parameters in the order in which DDP gave them to its reducer."""
    ignored = wrapper.parameters_to_ignore
    found: dict[int, torch.nn.Parameter] = {}
    for module_name, module in wrapper.module.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad and f"{module_name}.{name}" not in ignored:
                found.setdefault(id(parameter), parameter)
    return list(found.values())


def _agree(
    wrappers: list[DistributedDataParallel], groups: list[dist.ProcessGroup], empty: bool, target_step: int
) -> int:
    layouts = [layout_of(wrapper) for wrapper in wrappers]
    rows = [[wrapper in _settled, empty, _digest(layout)] for wrapper, layout in zip(wrappers, layouts, strict=True)]
    table = _gather(rows)
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
    return adopted


def _refuse_static_graph(wrapper: DistributedDataParallel, rows: list[list[int]]) -> None:
    newcomers = [rank for rank, row in enumerate(rows) if row[1]]
    if wrapper.static_graph and newcomers and len(newcomers) < len(rows):
        raise RebuildError(
            f"DDP with static_graph=True cannot take in the new ranks {newcomers}: it communicates otherwise in a "
            "process's first iteration than later; leave static_graph off, or the job restarts all ranks at a fault"
        )


def _gather(rows: list[list[Any]]) -> list[list[list[int]]]:
    """Return `rows` of every rank; the number of rows must be the same everywhere."""
    device = torch.device(c10d._get_object_coll_device())
    return [theirs.tolist() for theirs in _all(torch.tensor(rows, dtype=torch.int64, device=device))]


def _all(mine: torch.Tensor) -> list[torch.Tensor]:
    everyone = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    return everyone


def _send_layout(layout: Layout, source: int, wrapper: DistributedDataParallel) -> Layout:
    """Broadcast the layout of rank `source`: the indices in order, each bucket closed by -1, filled up with -2."""
    room = 2 * len(_parameters(wrapper))
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


def _digest(thing: Layout | list[str]) -> int:
    return int.from_bytes(hashlib.blake2b(repr(thing).encode(), digest_size=8).digest(), "big") >> 1
