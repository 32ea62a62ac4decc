"""Description of a straggler: the cause of the slowness, the figures that prove it, and a sentence.

Rules:

1. A test has found a unit, and its newest steps are searched for the slow part. They may refute it: the median is not
   slow, or the unit waits as long as the others. Then nothing is reported, and the test decides again with the next
   step.
2. If one rank is blamed, the cause is its data loading if more than half of the excess is there, else its computing.
   If three quarters of its node's ranks are slow, the node is blamed, and never if fewer are.
3. Work, pipeline and network blame no rank: `Straggler.blamed` is empty.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from taskd.core.diagnosis.findings import names
from taskd.core.stragglers.compare import EVEN, LEAST_STEPS, SLOW, Unit, median
from taskd.wire.kinds import JobRank

_MATES: Final = 0.75


class SlowCause(Enum):
    """Cause of a slowness."""

    COMPUTE = "compute"
    NODE = "node"
    DATA = "data loading"
    LINK = "network"
    IMBALANCE = "unequal stages of the pipeline"
    WORKLOAD = "unequal work"


HARDWARE: Final = (SlowCause.COMPUTE, SlowCause.NODE)


class Column(NamedTuple):
    """Successive steps of all ranks, with the ranks in their order. There are `steps` of them, and `step` is the last.

    `values`: the compared values; `given`: the part of the times that the ranks' work explains.
    """

    step: int
    steps: int
    values: Sequence[float]
    own_s: Sequence[float]
    waited_s: Sequence[float]
    data_s: Sequence[float]
    given: Sequence[float]

    @property
    def first(self) -> int:
        """First of its steps."""
        return self.step - self.steps + 1

    def transfer_s(self) -> float:
        """Return the waiting time beside the waiting for the slowest rank: the median of the ranks."""
        busy = [own + data for own, data in zip(self.own_s, self.data_s, strict=True)]
        slowest = max(busy)
        return median([max(0.0, wait - slowest + one) for wait, one in zip(self.waited_s, busy, strict=True)])

    def lasted_s(self) -> float:
        """Return the length of the step, as most ranks have seen it."""
        return median([sum(parts) for parts in zip(self.own_s, self.waited_s, self.data_s, strict=True)])


@dataclass(frozen=True, slots=True)
class Straggler:
    """A diagnosis of the pace of a job.

    Attributes:
        ranks: the ranks concerned; none if it is the network as a whole.
        since: the first slow step.
        from_start: it was slow in the first step that was seen, so there is no healthy history of it.
        steps: number of steps that it rests on.
        excess: 0.3 for 30 % more time than the others (`LINK`: of the whole step).
        own_s: seconds of a step for the blamed, and `usual_s` for the others.
        score: the log likelihood ratio: a healthy job comes to it once in about exp(score) rank-steps.

    """

    cause: SlowCause
    ranks: tuple[JobRank, ...]
    since: int
    steps: int
    excess: float
    own_s: float
    usual_s: float
    score: float
    sentence: str
    from_start: bool = False

    @property
    def excess_s(self) -> float:
        """Cost for the others in each step, in seconds."""
        return self.own_s - self.usual_s if self.cause is SlowCause.DATA else self.excess * self.usual_s

    @property
    def blamed(self) -> tuple[JobRank, ...]:
        """Ranks whose machine, process or data loading is considered slow."""
        return self.ranks if self.cause in (*HARDWARE, SlowCause.DATA) else ()

    @classmethod
    def of_link(cls, newest: Sequence[Column], rise: float, waited_s: float, score: float) -> "Straggler":
        """Describe a slow network: the collectives take longer, and no rank does."""
        since, steps = newest[0].first, _steps(newest)
        told = (
            f"Collectives take {rise:.0%} of a step longer than before, though no rank computes longer: the network "
            f"has been slow since step {since} ({waited_s:.3g} s of waiting in a step, over {steps} steps). Why: "
            "what is waited for is neither a rank nor data. `taskd check --manager HOST:PORT` measures all links."
        )
        return cls(SlowCause.LINK, (), since, steps, rise, waited_s, waited_s, score, told)

    @classmethod
    def of_work(cls, rank: JobRank, window: Sequence[Column], more: float, score: float) -> "Straggler":
        """Describe a rank that is given more to do than the others."""
        excess = math.expm1(more)
        told = (
            f"Rank {rank} is given {excess:.0%} more work than the others: nothing is slow. Why: for what it is given "
            "it is as fast as they are."
        )
        return cls(SlowCause.WORKLOAD, (rank,), window[0].first, _steps(window), excess, 0.0, 0.0, score, told)

    @classmethod
    def of_stages(cls, ranks: Sequence[JobRank], since: int, steps: int, more: float) -> "Straggler":
        """Describe a stage of a pipeline that has always needed longer."""
        excess = math.expm1(more)
        told = (
            f"The stage of {names(ranks)} has needed {excess:.0%} more than the other stages since step {since}: the "
            "pipeline is divided unequally, and nothing is slow. Why: all its ranks are alike in that."
        )
        return cls(SlowCause.IMBALANCE, tuple(ranks), since, steps, excess, 0.0, 0.0, 0.0, told, from_start=True)


def explain_unit(
    window: Collection[Column], unit: Unit, indices: Sequence[int], ranks: Sequence[JobRank], begun_at: int
) -> Straggler | None:
    """Return the diagnosis of a node whose ranks are slow together; None if the newest steps refute it."""
    newest, since, from_start = _since(window, unit, begun_at)
    if not _lasting(newest, indices, unit) or not _together(_late(newest), indices, _excess(_late(newest), indices)):
        return None
    return _told(newest, indices, ranks, unit.score, since, from_start)


def explain_rank(
    window: Collection[Column], unit: Unit, index: int, mates: Sequence[int], ranks: Sequence[JobRank], begun_at: int
) -> Straggler | None:
    """Return the diagnosis of a slow rank, or of its node if the others there are slow too.

    Return None if the newest steps refute it.
    """
    newest, since, from_start = _since(window, unit, begun_at)
    if not _lasting(newest, [index], unit):
        return None
    together = _together(_late(newest), mates, _excess(_late(newest), [index]))
    return _told(newest, mates if together else [index], ranks, unit.score, since, from_start)


def _since(window: Collection[Column], unit: Unit, begun_at: int) -> tuple[list[Column], int, bool]:
    """Return the newest steps in which the unit was slow, the first slow step, and whether it has always been slow."""
    newest = [*window][-unit.lasted :]
    before = (unit.lasted - len(newest)) * newest[0].steps  # about as many steps lie before the window
    since = max(begun_at, newest[0].first - before)
    return newest, since, unit.stands and since - begun_at <= EARLY


EARLY: Final = 16
"""Steps from the first one within which a slowness counts as one from the start."""


def _together(newest: Sequence[Column], indices: Sequence[int], excess: float) -> bool:
    """Return whether most ranks of a node are at least half as slow, compared with the ranks of other nodes."""
    slow = [index for index in indices if _excess(newest, [index], without=indices) >= excess / 2]
    return 1 < len(indices) < len(newest[0].values) and len(slow) >= _MATES * len(indices)


def _late(newest: Sequence[Column]) -> Sequence[Column]:
    """Return the later half: at the beginning of the steps, a sum may have risen by chance."""
    return newest[-max(LEAST_STEPS, len(newest) // 2) :]


def _excess(newest: Sequence[Column], indices: Sequence[int], without: Sequence[int] = ()) -> float:
    """Return how much more time the ranks at these indices need than the others.

    The result is the logarithm of the ratio, as the median over the steps.
    """
    left_out = {*indices, *without}
    others = [index for index in range(len(newest[0].values)) if index not in left_out]
    return median(
        [
            median([column.values[index] for index in indices]) - median([column.values[index] for index in others])
            for column in newest
        ]
    )


def _lasting(newest: Sequence[Column], indices: Sequence[int], unit: Unit) -> bool:
    """Return whether the ranks at these indices are slow in most of the steps, and the others may be waiting for them.

    If they wait longer than the others in more than half of the steps by two deviations, they hold up nobody.
    """
    others = [index for index in range(len(newest[0].values)) if index not in indices]
    least = (EVEN + SLOW) / 2 if unit.stands else max(0.8 * EVEN, SLOW / 2)
    if not others or _excess(newest, indices) < least:
        return False
    longer = sum(
        median([column.waited_s[index] for index in indices]) > median([column.waited_s[index] for index in others])
        for column in newest
    )
    return longer <= len(newest) / 2 + math.sqrt(len(newest))


def _told(
    newest: Sequence[Column],
    indices: Sequence[int],
    ranks: Sequence[JobRank],
    score: float,
    since: int,
    from_start: bool,
) -> Straggler:
    others = [index for index in range(len(ranks)) if index not in indices]
    late = _late(newest)
    own_s, usual_s = (_mean([column.own_s for column in late], which) for which in (indices, others))
    data_s, usual_data_s = (_mean([column.data_s for column in late], which) for which in (indices, others))
    excess = math.expm1(_excess(late, indices))
    cause = SlowCause.NODE if len(indices) > 1 else SlowCause.COMPUTE
    what = "of its own for a step" if len(indices) == 1 else "of their own for a step"
    if data_s - usual_data_s > 0.5 * _lost_s(late, indices, others):
        cause, what, own_s, usual_s = SlowCause.DATA, "to get the data of a step", data_s, usual_data_s
    blamed = tuple(ranks[index] for index in indices)
    who, whom = names(blamed), "it" if len(indices) == 1 else "them"
    told = (
        f"{who[0].upper()}{who[1:]} need{'s' * (len(indices) == 1)} {own_s:.3g} s {what}, where the others need "
        f"{usual_s:.3g} s: {excess:.0%} longer in all, {'from the start' if from_start else f'since step {since}'}, "
        f"over {_steps(newest)} steps. Why: the others spend the difference waiting for {whom}."
    )
    return Straggler(cause, blamed, since, _steps(newest), excess, own_s, usual_s, score, told, from_start)


def _lost_s(columns: Sequence[Column], indices: Sequence[int], others: Sequence[int]) -> float:
    """Return the time that these ranks need more than the others for a step, if all had been given the usual work."""
    return sum(
        math.exp(median([column.values[index] for index in others])) * math.expm1(_excess([column], indices))
        for column in columns
    ) / len(columns)


def _steps(columns: Sequence[Column]) -> int:
    return sum(column.steps for column in columns)


def _mean(columns: Sequence[Sequence[float]], indices: Sequence[int]) -> float:
    """Return the mean of the medians over these indices: one rank's pause is not the others' time."""
    return sum(median([column[index] for index in indices]) for column in columns) / len(columns)
