"""What a straggler is told as: whose fault the slowness is, the figures that say so, and a sentence.

Rules:

1. A test has found a unit; here the newest steps are asked what is slow in them. If they do not bear it out (the median
   is not slow, or it waits as long as the others), nothing is told, and the test is asked again with the next step.
2. One blamed rank: its data loading if half of the excess is there, else its computing. If three quarters of its
   node's ranks are slow, it is the node, and never if fewer are.
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
    """What is slow."""

    COMPUTE = "compute"
    NODE = "node"
    DATA = "data loading"
    LINK = "network"
    IMBALANCE = "unequal stages of the pipeline"
    WORKLOAD = "unequal work"


HARDWARE: Final = (SlowCause.COMPUTE, SlowCause.NODE)


class Column(NamedTuple):
    """`steps` steps of all ranks, in their order, the last of which is `step`.

    `values`: what was compared; `given`: what their work explains.
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
        """The first of its steps."""
        return self.step - self.steps + 1

    def transfer_s(self) -> float:
        """What is waited beside the waiting for the slowest rank: the middle of the ranks."""
        busy = [own + data for own, data in zip(self.own_s, self.data_s, strict=True)]
        slowest = max(busy)
        return median([max(0.0, wait - slowest + one) for wait, one in zip(self.waited_s, busy, strict=True)])

    def lasted_s(self) -> float:
        """The step, as most ranks have seen it."""
        return median([sum(parts) for parts in zip(self.own_s, self.waited_s, self.data_s, strict=True)])


@dataclass(frozen=True, slots=True)
class Straggler:
    """A diagnosis of the pace of a job.

    Attributes:
        ranks: those that it is about; none if it is the network as a whole.
        since: the first step at which it was so.
        from_start: it was so in the first step that was seen: no healthy history speaks against it.
        steps: over so many steps.
        excess: 0.3 for 30 % more time than the others (`LINK`: of the whole step).
        own_s: what a step costs the blamed, and `usual_s` what it costs the others.
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
        """What it costs the others in each step."""
        return self.own_s - self.usual_s if self.cause is SlowCause.DATA else self.excess * self.usual_s

    @property
    def blamed(self) -> tuple[JobRank, ...]:
        """Ranks whose machine, process or data loading is held to be slow."""
        return self.ranks if self.cause in (*HARDWARE, SlowCause.DATA) else ()

    @classmethod
    def of_link(cls, newest: Sequence[Column], rise: float, waited_s: float, score: float) -> "Straggler":
        """The collectives take longer, and no rank does."""
        since, steps = newest[0].first, _steps(newest)
        told = (
            f"Collectives take {rise:.0%} of a step longer than before, though no rank computes longer: the network "
            f"has been slow since step {since} ({waited_s:.3g} s of waiting in a step, over {steps} steps). Why: "
            "what is waited for is neither a rank nor data. `taskd check --manager HOST:PORT` measures all links."
        )
        return cls(SlowCause.LINK, (), since, steps, rise, waited_s, waited_s, score, told)

    @classmethod
    def of_work(cls, rank: JobRank, window: Sequence[Column], more: float, score: float) -> "Straggler":
        """One rank is given more to do than the others."""
        excess = math.expm1(more)
        told = (
            f"Rank {rank} is given {excess:.0%} more work than the others: nothing is slow. Why: for what it is given "
            "it is as fast as they are."
        )
        return cls(SlowCause.WORKLOAD, (rank,), window[0].first, _steps(window), excess, 0.0, 0.0, score, told)

    @classmethod
    def of_stages(cls, ranks: Sequence[JobRank], since: int, steps: int, more: float) -> "Straggler":
        """One stage of a pipeline has always needed longer."""
        excess = math.expm1(more)
        told = (
            f"The stage of {names(ranks)} has needed {excess:.0%} more than the other stages since step {since}: the "
            "pipeline is divided unequally, and nothing is slow. Why: all its ranks are alike in that."
        )
        return cls(SlowCause.IMBALANCE, tuple(ranks), since, steps, excess, 0.0, 0.0, 0.0, told, from_start=True)


def explain_unit(
    window: Collection[Column], unit: Unit, indices: Sequence[int], ranks: Sequence[JobRank], begun_at: int
) -> Straggler | None:
    """A node whose ranks are slow together."""
    newest, since, from_start = _since(window, unit, begun_at)
    if not _lasting(newest, indices, unit) or not _together(_late(newest), indices, _excess(_late(newest), indices)):
        return None
    return _told(newest, indices, ranks, unit.score, since, from_start)


def explain_rank(
    window: Collection[Column], unit: Unit, index: int, mates: Sequence[int], ranks: Sequence[JobRank], begun_at: int
) -> Straggler | None:
    """A rank that is slow; with its node, if the others there are slow too."""
    newest, since, from_start = _since(window, unit, begun_at)
    if not _lasting(newest, [index], unit):
        return None
    together = _together(_late(newest), mates, _excess(_late(newest), [index]))
    return _told(newest, mates if together else [index], ranks, unit.score, since, from_start)


def _since(window: Collection[Column], unit: Unit, begun_at: int) -> tuple[list[Column], int, bool]:
    """The newest steps in which the unit was slow, the first of them all, and whether it was never seen otherwise."""
    newest = [*window][-unit.lasted :]
    before = (unit.lasted - len(newest)) * newest[0].steps  # about so many lie before the window
    since = max(begun_at, newest[0].first - before)
    return newest, since, unit.stands and since - begun_at <= EARLY


EARLY: Final = 16
"""Slow within so many steps of the first is slow from the start."""


def _together(newest: Sequence[Column], indices: Sequence[int], excess: float) -> bool:
    """Whether most ranks of a node are at least half as slow, as held against the ranks of other nodes."""
    slow = [index for index in indices if _excess(newest, [index], without=indices) >= excess / 2]
    return 1 < len(indices) < len(newest[0].values) and len(slow) >= _MATES * len(indices)


def _late(newest: Sequence[Column]) -> Sequence[Column]:
    """The later half: at its beginning a sum may have risen by chance."""
    return newest[-max(LEAST_STEPS, len(newest) // 2) :]


def _excess(newest: Sequence[Column], indices: Sequence[int], without: Sequence[int] = ()) -> float:
    """How much more the ranks at these indices need than the others, as a logarithm: the median over the steps."""
    left_out = {*indices, *without}
    others = [index for index in range(len(newest[0].values)) if index not in left_out]
    return median(
        [
            median([column.values[index] for index in indices]) - median([column.values[index] for index in others])
            for column in newest
        ]
    )


def _lasting(newest: Sequence[Column], indices: Sequence[int], unit: Unit) -> bool:
    """The ranks at these indices are slow in most of the steps, and nothing says that the others do not wait for them.

    In more than half of the steps by two deviations they would wait longer than the others: then they hold up nobody.
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
    """What these ranks have needed more than the others for a step, had all been given the usual work."""
    return sum(
        math.exp(median([column.values[index] for index in others])) * math.expm1(_excess([column], indices))
        for column in columns
    ) / len(columns)


def _steps(columns: Sequence[Column]) -> int:
    return sum(column.steps for column in columns)


def _mean(columns: Sequence[Sequence[float]], indices: Sequence[int]) -> float:
    """Of the medians over these indices: one rank's pause is not the others' time."""
    return sum(median([column[index] for index in indices]) for column in columns) / len(columns)
