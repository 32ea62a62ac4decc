"""Plan of the kills of a rehearsal: which rank dies when.

Rules:

1. Each rank dies at least once if the steps suffice. Each kind of moment that the script has is struck, the worst ones
   first. No choice is random: the same script is rehearsed in the same way.
2. Between two deaths there are at least `LEAST_GAP` steps, in which a recovery can prove itself.
3. If the script ends by itself, one more rank dies after the training function has returned. All processes then start
   anew. This kill is the last one, and the steps after it are not compared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

FIRST: Final = 3
"""First step in which a rank may die: taskd itself has observed a whole step before."""
LEAST_GAP: Final = 3
_MOST_GAP: Final = 8
_TAIL: Final = 3


class Moment(Enum):
    """Moment of a step in which a rank dies. The value completes the sentence "killed …"."""

    BACKWARD = "in the backward pass"
    COMMITTED = "right behind the commit, all ranks being there"
    EPOCH_END = "right behind the last commit of an epoch, all ranks being there"
    STEPPED = "between optimizer.step() and the commit"
    EVALUATION = "in an evaluation"
    SAVING = "in the middle of torch.save"
    AFTER_COMMIT = "at the end of work given to after_commit"
    ACCUMULATING = "between two micro-batches"
    FORWARD = "before the forward pass"
    BEHIND = "behind the training function"


@dataclass(frozen=True)
class Kill:
    """Planned death: the process of `rank` that reaches that moment of the step dies there."""

    number: int
    rank: int
    step: int
    moment: Moment

    def __str__(self) -> str:
        return f"rank {self.rank} {self.moment.value}, step {self.step}"


@dataclass(frozen=True)
class Seen:
    """Steps at which an undisturbed rank had moments that not every step has."""

    steps: int
    evaluations: Sequence[int] = ()
    saves: Sequence[int] = ()
    ends: Sequence[int] = ()
    accumulations: Sequence[int] = ()
    works: Sequence[int] = ()


_EVERY_STEP: Final = (Moment.BACKWARD, Moment.COMMITTED, Moment.STEPPED, Moment.FORWARD)
_Times = Mapping[Moment, Mapping[int, Sequence[int]]]


def plan(seen: Mapping[int, Seen], *, ends: bool = False) -> list[Kill]:
    """Plan the kills of a run. `seen`: moments of the undisturbed run, by rank. `ends`: the script ended by itself."""
    steps = min((one.steps for one in seen.values()), default=0)
    last = steps - _TAIL
    times: _Times = {
        Moment.SAVING: {rank: one.saves for rank, one in seen.items()},
        Moment.EVALUATION: {rank: one.evaluations for rank, one in seen.items()},
        Moment.EPOCH_END: {rank: one.ends for rank, one in seen.items()},
        Moment.AFTER_COMMIT: {rank: one.works for rank, one in seen.items()},
        Moment.ACCUMULATING: {rank: one.accumulations for rank, one in seen.items()},
    }
    placed: dict[int, Moment] = {}
    for moment, by_rank in times.items():
        known = sorted({step for steps in by_rank.values() for step in steps})
        step = next((step for step in known if FIRST <= step <= last and _is_free(step, placed)), None)
        if step is not None:
            placed[step] = moment
    count = max(len(_EVERY_STEP), len(seen) - len(placed))
    gap = max(LEAST_GAP, min(_MOST_GAP, (last - FIRST) // max(1, count + len(placed) - 1)))
    for number in range(count):
        wanted = FIRST + number * gap
        free = (*range(wanted, last + 1), *range(FIRST, min(wanted, last + 1)))
        step = next((step for step in free if _is_free(step, placed)), None)
        if step is not None and seen:
            placed[step] = _EVERY_STEP[number % len(_EVERY_STEP)]
    if placed and ends:
        placed[steps] = Moment.BEHIND
    return _ranks(placed, times, sorted(seen))


def _is_free(step: int, placed: Mapping[int, Moment]) -> bool:
    return all(abs(step - other) >= LEAST_GAP for other in placed)


def _ranks(placed: Mapping[int, Moment], times: _Times, ranks: Sequence[int]) -> list[Kill]:
    """Assign each of these moments to the rank that has died least, among the ranks that have the moment."""
    died = dict.fromkeys(ranks, 0)
    kills: list[Kill] = []
    for step in sorted(placed):
        moment = placed[step]
        having = [rank for rank in ranks if moment not in times or step in times[moment][rank]]
        rank = min(having, key=lambda one: (died[one], -one))
        died[rank] += 1
        kills.append(Kill(len(kills), rank, step, moment))
    return kills
