"""Which rank of a rehearsal dies when.

Rules:

1. Each rank dies at least once if the steps suffice, and each kind of moment that the script has is struck, the worst
   ones first. No die is cast: the same script is rehearsed in the same way.
2. Between two deaths there are at least `LEAST_GAP` steps, in which a recovery can show what it is worth.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

FIRST: Final = 3
"""The first step in which a rank may die: taskd itself has seen a whole step before."""
LEAST_GAP: Final = 3
GAP: Final = 4
_TAIL: Final = 3


class Moment(Enum):
    """Where in a step a rank dies. The value completes the sentence "killed …"."""

    BACKWARD = "in the backward pass"
    COMMITTED = "right behind the commit, all ranks being there"
    STEPPED = "between optimizer.step() and the commit"
    EVALUATION = "in an evaluation"
    SAVING = "in the middle of torch.save"
    ACCUMULATING = "between two micro-batches"
    FORWARD = "before the forward pass"


@dataclass(frozen=True)
class Kill:
    """The process of `rank` that comes to that moment of the step dies there."""

    number: int
    rank: int
    step: int
    moment: Moment

    def __str__(self) -> str:
        return f"rank {self.rank} {self.moment.value}, step {self.step}"


@dataclass(frozen=True)
class Seen:
    """At which steps an undisturbed rank has had moments that not every step has."""

    steps: int
    evaluations: Sequence[int] = ()
    saves: Sequence[int] = ()
    accumulations: Sequence[int] = ()


_EVERY_STEP: Final = (Moment.BACKWARD, Moment.COMMITTED, Moment.STEPPED, Moment.FORWARD)


def plan(seen: Mapping[int, Seen]) -> list[Kill]:
    """The kills of a run whose undisturbed twin had these moments, by rank."""
    steps = min((one.steps for one in seen.values()), default=0)
    ranks = sorted(seen)
    room = (steps - FIRST - _TAIL) // LEAST_GAP + 1
    wanted = _moments(seen, len(ranks))[: max(0, room)]
    if not wanted:
        return []
    gap = max(LEAST_GAP, min(GAP * 2, (steps - FIRST - _TAIL) // max(1, len(wanted))))
    kills: list[Kill] = []
    left = list(wanted)
    died = dict.fromkeys(ranks, 0)
    step = FIRST
    while left and step <= steps - _TAIL:
        moment = left.pop(0)
        found = _place(moment, step, steps - _TAIL, seen, died)
        if found is None:
            continue
        rank, at = found
        died[rank] += 1
        kills.append(Kill(len(kills), rank, at, moment))
        step = at + gap
    return kills


def _moments(seen: Mapping[int, Seen], ranks: int) -> list[Moment]:
    """In the order in which they are struck; as many as there are ranks at least."""
    some = {
        Moment.EVALUATION: any(one.evaluations for one in seen.values()),
        Moment.SAVING: any(one.saves for one in seen.values()),
        Moment.ACCUMULATING: any(one.accumulations for one in seen.values()),
    }
    first = [moment for moment in Moment if some.get(moment, True)]
    while len(first) < ranks:
        first.append(_EVERY_STEP[len(first) % len(_EVERY_STEP)])
    return first


def _place(
    moment: Moment, step: int, last: int, seen: Mapping[int, Seen], died: Mapping[int, int]
) -> tuple[int, int] | None:
    """Who dies there, and at which step from this one on: the rank that has died least."""
    places = []
    for rank, one in seen.items():
        steps = {
            Moment.EVALUATION: one.evaluations,
            Moment.SAVING: one.saves,
            Moment.ACCUMULATING: one.accumulations,
        }.get(moment)
        at = next((known for known in (steps if steps is not None else (step,)) if known >= step), None)
        if at is not None and at <= last:
            places.append((died[rank], -rank, at, rank))
    if not places:
        return None
    _, _, at, rank = min(places)
    return rank, at
