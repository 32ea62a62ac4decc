"""Whether the ranks of each replica set still hold the same, by the digests that they report of some steps.

Rules:

1. A step is compared when every rank of the world has reported it. What a rank cannot read is not compared.
2. Who differs from most of its set, more than half of it, is odd. Of two, or of halves, nobody can say who is right.
3. What the ranks of a set hold differently from the beginning, each for itself, is no corruption: it is told once, and
   not compared any more. (A script may give each rank an optimizer of its own.)
4. A difference is told once, and again when other ranks differ, or after all were equal again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from taskd.wire.kinds import JobRank
from taskd.wire.state import StateDigest

_PARTS: Final = ("weights", "optimizer")
PART_NAMES: Final = {"weights": "parameters", "optimizer": "optimizer's state"}
_MOST_STEPS: Final = 64
"""That wait for some ranks."""


class StateSplit(NamedTuple):
    """A replica set whose ranks do not hold the same."""

    step: int
    key: str
    groups: tuple[tuple[JobRank, ...], ...]
    """The ranks that are equal to one another; the largest group first."""
    parts: tuple[str, ...]
    """What differs, of `PART_NAMES`."""
    equal_at: int = -1
    """The newest step at which all were equal; -1 if that was never seen."""

    @property
    def ranks(self) -> tuple[JobRank, ...]:
        """All of the set."""
        return tuple(sorted(rank for group in self.groups for rank in group))

    @property
    def odd(self) -> tuple[JobRank, ...]:
        """Those that differ from most; none if there is no majority."""
        if 2 * len(self.groups[0]) <= len(self.ranks):
            return ()
        return tuple(sorted(rank for group in self.groups[1:] for rank in group))


class Compared(NamedTuple):
    """What a comparison has found: sets that differ, and what was never equal (the key and the part of each)."""

    splits: tuple[StateSplit, ...] = ()
    unequal: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class StateComparison:
    """The digests of the present world that wait for others, and what former ones have come to."""

    generation: int = -1
    verified: int = -1
    """The newest step of this world at which the ranks of all sets were equal; -1 without one."""
    compared: int = -1
    """The newest step of this world that was compared."""
    vain: bool = False
    """Some ranks report nothing: that was told."""
    alone: bool = False
    """No rank has a replica: that was told."""
    _heard: dict[int, dict[JobRank, StateDigest]] = field(default_factory=dict)
    _equal: dict[tuple[str, str], int] = field(default_factory=dict)
    """By set and part the newest step at which all were equal."""
    _unequal: set[tuple[str, str]] = field(default_factory=set)
    _told: dict[str, tuple[tuple[JobRank, ...], ...]] = field(default_factory=dict)

    def begin(self, generation: int) -> None:
        """Another world: what was heard in the former one is not compared with what is heard in this."""
        self.generation, self.verified, self.compared = generation, -1, -1
        self._heard.clear()

    def hear(self, rank: JobRank, digests: Iterable[StateDigest]) -> None:
        """A rank of the present world has reported these."""
        for digest in digests:
            if digest.step > self.compared:
                self._heard.setdefault(digest.step, {})[rank] = digest
        while len(self._heard) > _MOST_STEPS:
            del self._heard[min(self._heard)]

    def waits_in_vain(self, members: Iterable[JobRank]) -> list[JobRank]:
        """Who has reported none of many steps that others have; told once."""
        if self.vain or len(self._heard) < _MOST_STEPS:
            return []
        self.vain = True
        heard = set().union(*self._heard.values())
        return [rank for rank in members if rank not in heard]

    def complete(self, world_size: int) -> bool:
        """Whether a step can be compared: all ranks have reported it."""
        return any(len(known) >= world_size for known in self._heard.values())

    def compare(self, sets: Mapping[JobRank, str | None]) -> Compared:
        """Compare the steps that all have reported; `sets` has the key of each rank's replica set."""
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
        """Whether a part that was equal is no more, or is in most ranks; `unequal` gets what never was."""
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
    """The ranks that hold the same of these parts; the largest group first. Who cannot read one of them is left out."""
    by_value: dict[tuple[str, ...], list[JobRank]] = {}
    for rank, digest in sorted(digests.items()):
        value = tuple(getattr(digest, part) for part in parts)
        if all(value):
            by_value.setdefault(value, []).append(rank)
    return tuple(sorted(map(tuple, by_value.values()), key=lambda group: (-len(group), group)))
