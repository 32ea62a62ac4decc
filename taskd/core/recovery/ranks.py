"""Which step every rank resumes at, and who gives state to whom.

Rules:

1. Ranks with the same key form a replica set: they hold the same state, and give it to each other alone. In plain data
   parallelism there is one set, and its key is empty.
2. The target is the newest committed step at which every set has a holder: a rank that is clean there, or one that has
   stepped exactly once since the step before. If there is none, it is the newest such step that nobody has committed.
3. A rank that is clean at the target keeps its state. In a set without one, the ranks that have stepped count that step
   as done (`adopt`). All others receive, from one donor of their set.
4. A set without a holder leaves no plan: its state is lost in memory, and only a checkpoint can bring it back.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from taskd.wire.kinds import JobRank
from taskd.wire.messages import Condition, RankStatus

Sets = dict[str | None, list[JobRank]]
"""The ranks of each replica set, by its key."""


class Giving(NamedTuple):
    """One donor and those that receive its state. (A plan names them by their ranks in the world: `Transfer`.)"""

    donor: JobRank
    receivers: tuple[JobRank, ...]


@dataclass(frozen=True, slots=True)
class Restore:
    """The step to resume at, the ranks that count their last step as done, and who gives state to whom."""

    target_step: int
    adopt: tuple[JobRank, ...]
    transfers: tuple[Giving, ...]


def plan_restore(held: Mapping[JobRank, RankStatus], keys: Mapping[JobRank, str | None]) -> Restore | None:
    """Choose the target step and the donors among the paused ranks; None if a set has no rank with a whole state.

    `keys` are those of the ranks' replica sets.
    """
    sets: Sets = {}
    for rank in sorted(held):
        sets.setdefault(keys[rank], []).append(rank)
    committed = {h.step for h in held.values() if h.condition is Condition.CLEAN}
    stepped = {h.step + 1 for h in held.values() if h.condition is Condition.STEPPED}
    for target_step in (*sorted(committed, reverse=True), *sorted(stepped - committed, reverse=True)):
        restore = _towards(target_step, sets, held)
        if restore is not None:
            return restore
    return None


def _towards(
    target_step: int, sets: Mapping[str | None, list[JobRank]], held: Mapping[JobRank, RankStatus]
) -> Restore | None:
    adopt: list[JobRank] = []
    transfers: list[Giving] = []
    for ranks in sets.values():
        holders = _at(ranks, held, target_step, Condition.CLEAN)
        if not holders:
            holders = _at(ranks, held, target_step - 1, Condition.STEPPED)
            adopt += holders
        if not holders:
            return None
        receivers = tuple(sorted(set(ranks) - set(holders)))
        if receivers:
            transfers.append(Giving(holders[0], receivers))
    return Restore(target_step, tuple(sorted(adopt)), tuple(transfers))


def _at(ranks: list[JobRank], held: Mapping[JobRank, RankStatus], step: int, condition: Condition) -> list[JobRank]:
    return [rank for rank in ranks if held[rank].condition is condition and held[rank].step == step]
