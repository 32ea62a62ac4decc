"""Restore plan: the step at which every rank resumes, and the donor of each rank that receives state.

Rules:

1. Ranks with the same key form a replica set. They hold the same state, and give it only to each other. Plain data
   parallelism has one set, and its key is empty.
2. The target is the newest committed step at which every set has a holder. A holder is clean there, or has stepped
   exactly once since the step before. If there is none, the target is the newest such step that no rank has committed.
3. A rank that is clean at the target keeps its state. In a set without one, the ranks that have stepped count that step
   as done (`adopt`). All other ranks receive, from one donor of their set.
4. If there is no such step, all go back to the newest step at which every set has a holder or a copy. Steps at which
   every rank has its data position come first. In a set without a holder, each rank loads the copy of its own state.
   It sends that state to the ranks that have copied only their position.
5. A rank whose state differs from that of its replicas (`Unshared`) needs its own copy. If it has none, BatchNorm's
   statistics are given up. Any other such state makes the plan impossible.
6. If work after the commit of the target step was interrupted on a living rank, all go back to copies of an earlier
   step. They then do that work again. Without such copies the target stays.
7. If no holders or copies give a step, all go back to the newest checkpoint that any rank knows the job to have
   written.
8. Without a checkpoint there is no plan. Only data that the script itself has kept can bring the state back.
"""

from bisect import bisect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from taskd.wire.kinds import JobRank
from taskd.wire.messages import Condition, RankStatus
from taskd.wire.state import Unshared

Sets = dict[str | None, list[JobRank]]
"""Ranks of each replica set, by its key."""


class Giving(NamedTuple):
    """One donor and the ranks that receive its state, as ranks of the job; `Transfer` names ranks of the world."""

    donor: JobRank
    receivers: tuple[JobRank, ...]


class Loading(NamedTuple):
    """One rank that loads a copy of the state of the rank `of`. `holder` can read the copy."""

    receiver: JobRank
    holder: JobRank
    of: JobRank


@dataclass(frozen=True, slots=True)
class Restore:
    """Step to resume at, ranks that count their last step as done, and givers and receivers of state.

    `loads`: ranks that go back to a copy. `copied`: the newest step of which every set has a copy; -1 without one.
    `saved`: all go back to the checkpoint of the target step.
    """

    target_step: int
    adopt: tuple[JobRank, ...]
    transfers: tuple[Giving, ...]
    loads: tuple[Loading, ...] = ()
    copied: int = -1
    saved: bool = False


_Known = dict[str | None, dict[int, dict[JobRank, Loading]]]
"""Copies of each replica set, by step and by the rank whose state it is. The rank's own reading is preferred."""


def plan_restore(held: Mapping[JobRank, RankStatus], keys: Mapping[JobRank, str | None]) -> Restore | None:
    """Choose the target step and the donors among the paused ranks; None if there is no way back.

    `keys`: those of the ranks' replica sets.
    """
    restore = _from_ranks(held, keys)
    if restore is None and any(status.own is Unshared.SERVES for status in held.values()):
        given_up = {
            rank: replace(status, own=Unshared.NOTHING) if status.own is Unshared.SERVES else status
            for rank, status in held.items()
        }
        restore = _from_ranks(given_up, keys)
    saved = max((status.saved for status in held.values()), default=-1)
    return restore or (Restore(saved, (), (), saved=True) if saved >= 0 else None)


def _from_ranks(held: Mapping[JobRank, RankStatus], keys: Mapping[JobRank, str | None]) -> Restore | None:
    """Choose as `plan_restore` does, without checkpoints."""
    sets: Sets = {}
    for rank in sorted(held):
        sets.setdefault(keys[rank], []).append(rank)
    copies = _copies(held, keys)
    steps = [set(copies.get(key, ())) for key in sets]
    places = _places(held)
    copied = _newest(set.intersection(*steps) if steps else set(), places, len(held))
    committed = {h.step for h in held.values() if h.condition is Condition.CLEAN}
    stepped = {h.step + 1 for h in held.values() if h.condition is Condition.STEPPED}
    for rank, status in held.items():
        if status.condition is Condition.CLEAN:
            places.setdefault(status.step, set()).add(rank)
    known = sorted(committed.union(*steps), reverse=True)
    exact = [step for step in known if len(places.get(step, ())) == len(held)]
    for target_step in (*sorted(committed, reverse=True), *sorted(stepped - committed, reverse=True)):
        restore = _towards(target_step, sets, held, {}, copied)
        if restore is not None and any(status.behind == target_step for status in held.values()):
            before = (step for step in exact if step < target_step)
            again = (_towards(step, sets, held, copies, copied) for step in before)
            return next(filter(None, again), restore)
        if restore is not None:
            return restore
    shares = any(copy.place for status in held.values() for copy in status.copies)
    for target_step in exact if shares else (*exact, *known):  # elsewhere a rank may lack its position
        restore = _towards(target_step, sets, held, copies, copied)
        if restore is not None:
            return restore
    return None


def _newest(steps: set[int], places: Mapping[int, set[JobRank]], count: int) -> int:
    """Return the newest of these steps with the positions of all `count` ranks, else the newest; -1 without one."""
    exact = (step for step in steps if len(places.get(step, ())) == count)
    return max(exact, default=max(steps, default=-1))


def _places(held: Mapping[JobRank, RankStatus]) -> dict[int, set[JobRank]]:
    """Return by step the ranks whose data position is in a copy that can be read."""
    places: dict[int, set[JobRank]] = {}
    for holder, status in held.items():
        for copy in status.copies:
            if copy.of in held and (not copy.place or copy.of == holder):
                places.setdefault(copy.step, set()).add(copy.of)
    return places


def _copies(held: Mapping[JobRank, RankStatus], keys: Mapping[JobRank, str | None]) -> _Known:
    known: _Known = {}
    for holder, status in sorted(held.items()):
        for copy in status.copies:
            if copy.of in keys and not copy.place:
                of = known.setdefault(keys[copy.of], {}).setdefault(copy.step, {})
                if copy.of == holder or copy.of not in of:
                    of[copy.of] = Loading(copy.of, holder, copy.of)
    return known


def _towards(
    target_step: int, sets: Sets, held: Mapping[JobRank, RankStatus], copies: _Known, copied: int
) -> Restore | None:
    adopt: list[JobRank] = []
    transfers: list[Giving] = []
    loads: list[Loading] = []
    for key, ranks in sets.items():
        holders = _at(ranks, held, target_step, Condition.CLEAN)
        if not holders and not copies:
            holders = _at(ranks, held, target_step - 1, Condition.STEPPED)
            adopt += holders
        known, has = copies.get(key, {}).get(target_step, {}), set(holders)
        loaders = [
            rank
            for rank in ranks
            if rank not in has and rank in known and (not holders or held[rank].own is not Unshared.NOTHING)
        ]
        has.update(loaders)
        receivers = [rank for rank in ranks if rank not in has]
        donors = [rank for rank in holders or loaders if held[rank].own is not Unshared.ALONE]
        if receivers and (not donors or any(held[rank].own is not Unshared.NOTHING for rank in receivers)):
            return None
        loads += (known[rank] for rank in loaders)
        transfers += _givings(donors[:1] if holders else donors, receivers)
    return Restore(target_step, tuple(sorted(adopt)), tuple(transfers), tuple(loads), copied)


def _givings(donors: list[JobRank], receivers: list[JobRank]) -> list[Giving]:
    """Give each receiver the nearest donor with a lower rank, which is mostly on its own node."""
    by_donor: dict[JobRank, list[JobRank]] = {}
    for rank in receivers:
        by_donor.setdefault(donors[max(0, bisect(donors, rank) - 1)], []).append(rank)
    return [Giving(donor, tuple(ranks)) for donor, ranks in by_donor.items()]


def _at(ranks: list[JobRank], held: Mapping[JobRank, RankStatus], step: int, condition: Condition) -> list[JobRank]:
    return [rank for rank in ranks if held[rank].condition is condition and held[rank].step == step]
