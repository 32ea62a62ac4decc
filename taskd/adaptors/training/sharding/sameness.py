"""The DDP wrappers of this process that take part in a new world, and the proof that all ranks have the same.

Rules:

1. All living wrappers take part, even if the training state does not hold them: a state may be given the bare model.
2. If a newcomer joins, wrappers made inside the resilient function do not take part, since the newcomer has none yet. A
   script that makes them anew whenever the function is entered drops them. A script that continues to use them is
   refused at their first collective, and all processes start anew.
3. Number, order, parameters and groups are compared over the default group, because ranks in different groups would
   wait for one another without end. Then one collective over each other group of a wrapper proves the comparison.
4. Differences come from the script and recur in every new world. They are refused, and all processes start anew.
5. A wrapper that the script has dropped may live on in a cycle of references, on some ranks only. Garbage is not
   collected to find that out, since that takes the longer, the larger the heap is. All ranks have made the same
   wrappers outside. If some rank has lost one of them, no rank uses it, and it takes no part. If it is used all the
   same, it is refused (rule 2).
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from taskd.adaptors.groups.gathering import gather, number_of
from taskd.adaptors.groups.lone import communicating
from taskd.adaptors.groups.wrappers import line_of, made_inside, places
from taskd.adaptors.training.recovery import StateRecovery
from taskd.errors import RefusedError
from taskd.wire.messages import Condition

Refuse = Callable[[str], None]


class WrapperRow(NamedTuple):
    """Wrappers of one rank, as numbers that the ranks compare."""

    made: int
    """Wrappers made outside of the resilient function, living or not."""
    living: int
    """The living wrappers among these, as a number."""
    outside: int
    inside: int
    """Counts of living wrappers that were made outside, and inside."""
    empty: int
    """1 for a newcomer, else 0."""
    models: int
    """Models of the wrappers made outside, as a number."""
    all_models: int


def taking_part(recovery: StateRecovery, refuse: Refuse, table: Sequence[WrapperRow]) -> list[DistributedDataParallel]:
    """Return the wrappers that all ranks have. `table` has the row of each rank.

    Collective over the default group if some rank has dropped a wrapper.

    Raises:
        RefusedError: the ranks have different wrappers.
    """
    if len({row.living for row in table}) > 1 and len({row.made for row in table}) == 1:
        _leave_out_dropped(table[0].made, refuse)
        table = [WrapperRow(*row) for row in gather([*row_of(recovery)])]
    wrappers, whole = current_wrappers(recovery), True
    if any(row.empty for row in table) or len({row.inside for row in table}) > 1:
        for wrapper in filter(made_inside, wrappers):
            point(wrapper, OutdatedGroup(_INSIDE.format(line_of(wrapper)), _REMAKE, refuse))
        wrappers, whole = [wrapper for wrapper in wrappers if not made_inside(wrapper)], False
    lines = ", ".join(map(line_of, wrappers)) or "none"
    if len({row.outside for row in table}) > 1:
        raise RefusedError(
            f"the ranks have {[row.outside for row in table]} DDP wrappers, expected the same number; those of rank "
            f"{dist.get_rank()} were made at: {lines}. Make each before the resilient function on all ranks"
        )
    models = [row.all_models if whole else row.models for row in table]
    different = [rank for rank, model in enumerate(models) if model != models[dist.get_rank()]]
    if different:
        raise RefusedError(
            f"ranks {different} have DDP wrappers of other models, or in another order, than rank {dist.get_rank()}, "
            f"whose were made at: {lines}; expected the same on all ranks"
        )
    return wrappers


def prove(wrappers: Sequence[DistributedDataParallel], names: Sequence[Sequence[int]]) -> None:
    """Prove by a collective that all holders of each wrapper are in its group, before a step relies on that.

    `names`: for each rank and wrapper, the number of its group's name. The default group is proven already.

    Raises:
        RefusedError: they are not.
    """
    own = names[dist.get_rank()]
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
    """Stand-in for the group of a wrapper that takes no part in a new world: each collective raises, with a remedy."""

    def __init__(self, reason: str, remedy: str, refuse: Refuse) -> None:
        super().__init__(0, 1)  # type: ignore[call-arg]  # the constructor for subclasses is not in the stubs
        self._reason, self._remedy = reason, remedy
        self._refuse = refuse

    def fail(self, *_: Any, **__: Any) -> Any:
        """Fail every collective. The agent is informed first, so no further attempt is made."""
        self._refuse(self._reason)
        raise RuntimeError(f"{self._reason}: {self._remedy}")


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


def current_wrappers(recovery: StateRecovery) -> list[DistributedDataParallel]:
    """Return the living wrappers of this process that take part in worlds."""
    return [wrapper for wrapper in recovery.parts.wrappers() if not isinstance(wrapper.process_group, OutdatedGroup)]


_INSIDE: Final = (
    "the DistributedDataParallel made at {}, inside the resilient function, is used again when that is entered anew, "
    "where a new process makes its own"
)
_DROPPED: Final = "the DistributedDataParallel made at {}, which another rank has dropped, is used again"
_REMAKE: Final = "make it before the function, or anew whenever the function is entered"
_KEEP: Final = "keep a reference to it on all ranks, or drop it on all"


def row_of(recovery: StateRecovery) -> WrapperRow:
    """Return the row of this rank."""
    wrappers = current_wrappers(recovery)
    inside = [made_inside(wrapper) for wrapper in wrappers]
    models = [[list(parameter.shape) for parameter in parameters(wrapper)] for wrapper in wrappers]
    outside = [model for model, within in zip(models, inside, strict=True) if not within]
    made, living = _living_outside()
    empty = recovery.condition() is Condition.EMPTY
    return WrapperRow(
        made, number_of([*living]), inside.count(False), inside.count(True), empty, number_of([outside]),
        number_of([models]),
    )  # fmt: skip


def _living_outside() -> tuple[int, dict[int, DistributedDataParallel]]:
    made, living = places()
    in_use = {place: one for place, one in living.items() if not isinstance(one.process_group, OutdatedGroup)}
    return made, in_use


def _leave_out_dropped(made: int, refuse: Refuse) -> None:
    """Exclude wrappers that were made outside and that some rank no longer has. Collective."""
    _, living = _living_outside()
    everywhere = [all(there) for there in zip(*gather([place in living for place in range(made)]), strict=True)]
    for place, wrapper in living.items():
        if not everywhere[place]:
            point(wrapper, OutdatedGroup(_DROPPED.format(line_of(wrapper)), _KEEP, refuse))
