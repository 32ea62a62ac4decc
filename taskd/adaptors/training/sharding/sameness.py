"""Which DDP wrappers of this process take part in a new world, and whether all ranks have the same.

Rules:

1. All living wrappers take part, whether or not the training state holds them: a state may be given the bare model.
2. Where a newcomer comes in, those that were made inside the resilient function do not: it has none yet. A script that
   makes them anew whenever the function is entered drops them; one that goes on with them is refused at their first
   collective, and all processes start anew.
3. Number, order, parameters and groups are compared over the default group: ranks that would meet in different groups
   wait for one another without end. Then one collective over each other group of a wrapper proves what was compared.
4. What differs is of the script, and differs in every new world: it is refused, and all processes start anew.
"""

import gc
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from taskd.adaptors.groups.gathering import gather, number_of
from taskd.adaptors.groups.lone import communicating
from taskd.adaptors.groups.wrappers import line_of, made_inside
from taskd.adaptors.training.recovery import StateRecovery
from taskd.errors import RefusedError
from taskd.wire.messages import Condition

Refuse = Callable[[str], None]


def taking_part(recovery: StateRecovery, refuse: Refuse) -> list[DistributedDataParallel]:
    """Return the wrappers that all ranks have. Collective over the default group.

    Raises:
        RefusedError: the ranks have other wrappers than one another.
    """
    empty = recovery.condition() is Condition.EMPTY
    table = _table(recovery, empty)
    if len({row[0] for row in table}) > 1 or len({row[1] for row in table}) > 1:
        gc.collect()  # what a script has dropped may live on in a cycle, here and not there
        table = _table(recovery, empty)
    wrappers, models = _current(recovery), _ALL
    if any(row[2] for row in table) or len({row[1] for row in table}) > 1:
        for wrapper in filter(made_inside, wrappers):
            point(wrapper, OutdatedGroup(line_of(wrapper), refuse))
        wrappers, models = [wrapper for wrapper in wrappers if not made_inside(wrapper)], _OUTSIDE
    lines = ", ".join(map(line_of, wrappers)) or "none"
    if len({row[0] for row in table}) > 1:
        raise RefusedError(
            f"the ranks have {[row[0] for row in table]} DDP wrappers, expected the same number; those of rank "
            f"{dist.get_rank()} were made at: {lines}. Make each before the resilient function on all ranks"
        )
    different = [rank for rank, row in enumerate(table) if row[models] != table[dist.get_rank()][models]]
    if different:
        raise RefusedError(
            f"ranks {different} have DDP wrappers of other models, or in another order, than rank {dist.get_rank()}, "
            f"whose were made at: {lines}; expected the same on all ranks"
        )
    return wrappers


def name_of(wrapper: DistributedDataParallel) -> int:
    """A number for the name of the group that a wrapper communicates in."""
    return number_of([str(wrapper.process_group.group_name)])


def prove(wrappers: Sequence[DistributedDataParallel], names: Sequence[Sequence[int]]) -> None:
    """Have all holders of each wrapper meet in its own group, before a step relies on that.

    `names`: of each rank and wrapper, the number of its group's name. The default group has been met in already.

    Raises:
        RefusedError: they do not.
    """
    own = [name_of(wrapper) for wrapper in wrappers]
    for index, wrapper in enumerate(wrappers):
        members = dist.get_process_group_ranks(wrapper.process_group)
        _expect_same(wrapper, members, [names[rank][index] for rank in members], own[index])
    for index, wrapper in enumerate(wrappers):
        if wrapper.process_group is dist.group.WORLD:
            continue
        mine = [index, own[index], len(parameters(wrapper))]
        members = dist.get_process_group_ranks(wrapper.process_group)
        _expect_same(wrapper, members, gather(mine, wrapper.process_group), mine)


def _expect_same(wrapper: DistributedDataParallel, members: list[int], theirs: list[Any], mine: Any) -> None:
    different = [rank for rank, found in zip(members, theirs, strict=True) if found != mine]
    if different:
        raise RefusedError(
            f"the DistributedDataParallel made at {line_of(wrapper)} communicates in group "
            f"{wrapper.process_group.group_name} with ranks {members}, of which {different} have theirs in another "
            "group; make it with the same process_group in every process"
        )


class OutdatedGroup(dist.ProcessGroup):
    """In place of the group of a wrapper that was made inside the resilient function, in a world that is gone."""

    def __init__(self, line: str, refuse: Refuse) -> None:
        super().__init__(0, 1)  # type: ignore[call-arg]  # the constructor for subclasses is not in the stubs
        self._line = line
        self._refuse = refuse

    def fail(self, *_: Any, **__: Any) -> Any:
        """Every collective of it. The agent is told first: so no further attempt is made."""
        reason = (
            f"the DistributedDataParallel made at {self._line}, inside the resilient function, is used again when that "
            "is entered anew, where a new process makes its own"
        )
        self._refuse(reason)
        raise RuntimeError(f"{reason}: make it before the function, or anew whenever the function is entered")


for _name in communicating():
    setattr(OutdatedGroup, _name, OutdatedGroup.fail)


def point(wrapper: DistributedDataParallel, group: dist.ProcessGroup) -> None:
    """Have a wrapper communicate in this group from now on."""
    wrapper._update_process_group(group)  # type: ignore[no-untyped-call]


def parameters(wrapper: DistributedDataParallel) -> list[torch.nn.Parameter]:
    """Return the parameters in the order in which DDP gave them to its reducer."""
    ignored = wrapper.parameters_to_ignore
    found: dict[int, torch.nn.Parameter] = {}
    for module_name, module in wrapper.module.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad and f"{module_name}.{name}" not in ignored:
                found.setdefault(id(parameter), parameter)
    return list(found.values())


def _current(recovery: StateRecovery) -> list[DistributedDataParallel]:
    return [wrapper for wrapper in recovery.parts.wrappers() if not isinstance(wrapper.process_group, OutdatedGroup)]


_OUTSIDE, _ALL = 3, 4


def _table(recovery: StateRecovery, empty: bool) -> list[list[int]]:
    """Of each rank: wrappers made outside and inside of the resilient function, whether it is a newcomer, the models.

    The models of the wrappers made outside, and those of all, are a number each.
    """
    wrappers = _current(recovery)
    inside = [made_inside(wrapper) for wrapper in wrappers]
    models = [[list(parameter.shape) for parameter in parameters(wrapper)] for wrapper in wrappers]
    outside = [model for model, within in zip(models, inside, strict=True) if not within]
    return gather([inside.count(False), inside.count(True), empty, number_of([outside]), number_of([models])])
