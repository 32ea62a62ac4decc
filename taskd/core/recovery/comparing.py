"""Comparison of the states in each replica set, by the digests that its ranks report of some steps.

Rules:

1. A step is compared when every rank of the world has reported it. Parts that a rank cannot read are not compared.
2. A rank is odd if it differs from more than half of its set. In a set of two ranks, or of two halves, no rank is odd.
3. A part in which each rank differs from the beginning is no corruption. The difference is reported once, and the part
   is not compared any more. (A script may give each rank an optimizer of its own.)
4. A difference is reported once. It is reported again when other ranks differ, or after all ranks were equal again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from taskd.wire.kinds import JobRank
from taskd.wire.state import StateDigest

_PARTS: Final = ("weights", "optimizer")
PART_NAMES: Final = {"weights": "parameters", "optimizer": "optimizer's state"}
_MOST_STEPS: Final = 64
"""Most steps that may wait for the digests of other ranks."""


class StateSplit(NamedTuple):
    """Replica set whose ranks hold different states."""

    step: int
    key: str
    groups: tuple[tuple[JobRank, ...], ...]
    """Groups of ranks with equal states; the largest group first."""
    parts: tuple[str, ...]
    """Parts that differ, from `PART_NAMES`."""
    equal_at: int = -1
    """Newest step at which all ranks were equal; -1 if they were never seen to be."""

    @property
    def ranks(self) -> tuple[JobRank, ...]:
        """All ranks of the set."""
        return tuple(sorted(rank for group in self.groups for rank in group))

    @property
    def odd(self) -> tuple[JobRank, ...]:
        """Ranks that differ from the majority; none if there is no majority."""
        if 2 * len(self.groups[0]) <= len(self.ranks):
            return ()
        return tuple(sorted(rank for group in self.groups[1:] for rank in group))


class Compared(NamedTuple):
    """Result of a comparison: sets that differ, and the key and part of each state that was never equal."""

    splits: tuple[StateSplit, ...] = ()
    unequal: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class StateComparison:
    """Digests of the present world that wait for other ranks, and the results of former comparisons."""

    generation: int = -1
    verified: int = -1
    """Newest step of this world at which the ranks of every set were equal; -1 without one."""
    compared: int = -1
    """Newest step of this world that was compared."""
    vain: bool = False
    """Some ranks report no digests, which was reported."""
    alone: bool = False
    """No rank has a replica, which was reported."""
    _heard: dict[int, dict[JobRank, StateDigest]] = field(default_factory=dict)
    _equal: dict[tuple[str, str], int] = field(default_factory=dict)
    """Newest step at which all ranks were equal, by set and part."""
    _unequal: set[tuple[str, str]] = field(default_factory=set)
    _told: dict[str, tuple[tuple[JobRank, ...], ...]] = field(default_factory=dict)

    def begin(self, generation: int) -> None:
        """Begin another world: its digests are not compared with those of the former one."""
        self.generation, self.verified, self.compared = generation, -1, -1
        self._heard.clear()

    def hear(self, rank: JobRank, digests: Iterable[StateDigest]) -> None:
        """Record digests that a rank of the present world has reported."""
        for digest in digests:
            if digest.step > self.compared:
                self._heard.setdefault(digest.step, {})[rank] = digest
        while len(self._heard) > _MOST_STEPS:
            del self._heard[min(self._heard)]

    def waits_in_vain(self, members: Iterable[JobRank]) -> list[JobRank]:
        """Return the ranks that have reported no digests while others reported `_MOST_STEPS` steps.

        Only the first such call returns them; later calls return none.
        """
        if self.vain or len(self._heard) < _MOST_STEPS:
            return []
        self.vain = True
        heard = set().union(*self._heard.values())
        return [rank for rank in members if rank not in heard]

    def complete(self, world_size: int) -> bool:
        """Return whether a step can be compared, because all ranks have reported it."""
        return any(len(known) >= world_size for known in self._heard.values())

    def compare(self, sets: Mapping[JobRank, str | None]) -> Compared:
        """Compare the steps that all ranks have reported. `sets`: the key of each rank's replica set."""
        found = Compared()
        for step in sorted(step for step, known in self._heard.items() if len(known) >= len(sets)):
            found = self._compare(step, sets, found)
        self._heard = {step: known for step, known in self._heard.items() if step > self.compared}
        return found

    def _compare(self, step: int, sets: Mapping[JobRank, str | None], before: Compared) -> Compared:
        members: dict[str, dict[JobRank, StateDigest]] = {}
        for rank, digest in self._heard[step].items():
            key = sets.get(rank)
            if key is not None:
                members.setdefault(key, {})[rank] = digest
        self.compared = step
        splits: list[StateSplit] = []
        unequal: list[tuple[str, str]] = []
        for key, digests in sorted(members.items()):
            differing = [part for part in _PARTS if self._differs(step, key, part, digests, unequal)]
            if not differing:
                self._told.pop(key, None)
                continue
            equal_at = min(self._equal.get((key, part), -1) for part in differing)
            split = StateSplit(step, key, _groups(digests, differing), tuple(differing), equal_at)
            if self._told.get(key) != split.groups:
                self._told[key] = split.groups
                splits.append(split)
        readable = all(digest.weights and digest.optimizer for known in members.values() for digest in known.values())
        if readable and not self._told.keys() & members.keys():
            self.verified = step
        return Compared((*before.splits, *splits), (*before.unequal, *unequal))

    def _differs(
        self, step: int, key: str, part: str, digests: Mapping[JobRank, StateDigest], unequal: list[tuple[str, str]]
    ) -> bool:
        """Return whether a part differs that was equal before, or that a majority holds alike.

        A part that was never equal is added to `unequal` instead.
        """
        groups, known = _groups(digests, (part,)), (key, part)
        if len(groups) < 2:
            if groups and len(groups[0]) > 1:
                self._equal[known] = step
            return False
        majority = 2 * len(groups[0]) > sum(map(len, groups))
        if known not in self._equal and known not in self._unequal and not majority:
            self._unequal.add(known)
            unequal.append(known)
        return known not in self._unequal


def _groups(digests: Mapping[JobRank, StateDigest], parts: Iterable[str]) -> tuple[tuple[JobRank, ...], ...]:
    """Group the ranks that hold the same of these parts; the largest group first.

    Ranks that cannot read one of the parts are left out.
    """
    by_value: dict[tuple[str, ...], list[JobRank]] = {}
    for rank, digest in sorted(digests.items()):
        value = tuple(getattr(digest, part) for part in parts)
        if all(value):
            by_value.setdefault(value, []).append(rank)
    return tuple(sorted(map(tuple, by_value.values()), key=lambda group: (-len(group), group)))
