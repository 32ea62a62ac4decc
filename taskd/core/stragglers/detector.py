"""Detection of slow ranks in a job that trains, step by step. Each is reported with its slow part and the reason.

Rules:

1. A rank is slow if the others wait for it. It needs longer than they do, or than its own history predicts, and it
   waits less.
2. A rank's own time and its waiting for data count, without the collectives. Where a rank's amount of work is known
   (`Step.work`), the time that the work explains is left out. A rank with more to do is not blamed.
3. Steps of another kind are set aside: the first ones, and those that take everybody twice as long as usual. Occasional
   events on one rank (a checkpoint, a pause) have a bounded effect on the tests.
4. Ranks are compared with ranks, and nodes with nodes (by the median of their ranks). The time that the collectives
   need beside all waiting is compared with its own history. The constant excess of a pipeline's stage is taken off
   first.
5. State is bounded: the newest `WINDOW` steps of each rank. One step costs O(ranks), with one sort.
"""

import math
from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from taskd.core.stragglers.compare import EVEN, LEARN, SLOW, Comparison, median, steps_needed
from taskd.core.stragglers.diagnosis import Column, SlowCause, Straggler, explain_rank, explain_unit
from taskd.core.stragglers.work import WorkLaw
from taskd.wire.kinds import JobRank, NodeRank

WARM_UP: Final = 8
WINDOW: Final = 64
_SEASON: Final = math.log(2)
_SEASON_STEPS: Final = 4
_TYPICAL_STEPS: Final = 16
_STAGE_STEPS: Final = 256
_STEP_STEPS: Final = 512
_LATELY: Final = 5
_LEAST_S: Final = 1e-9

T = TypeVar("T")


class Step(NamedTuple):
    """One step of one rank, or the mean of `steps` successive ones, of which `step` is the last.

    `own_s` is all time without the waiting for others and for data. `work` is the amount of work in that time (tokens,
    for example), 0 if it is not known.
    """

    rank: JobRank
    step: int
    own_s: float
    waited_s: float
    data_s: float = 0.0
    work: float = 0.0
    steps: int = 1

    @property
    def busy_s(self) -> float:
        """Time for which the others wait, in seconds."""
        return max(_LEAST_S, self.own_s + self.data_s)


@dataclass(frozen=True, slots=True)
class Layout:
    """Places of the ranks: the node of each and, if the job has given it, its stage of the pipeline."""

    nodes: Mapping[JobRank, NodeRank]
    stages: Mapping[JobRank, int] = field(default_factory=dict)

    def ranks_by_node(self) -> dict[NodeRank, list[JobRank]]:
        """Return the ranks of each node."""
        return _grouped(self.nodes)

    def ranks_by_stage(self) -> dict[int, list[JobRank]]:
        """Return the ranks of each stage; nothing if the stage of any rank is unknown."""
        return _grouped(self.stages) if self.stages.keys() >= self.nodes.keys() else {}


def _grouped(numbers: Mapping[JobRank, T]) -> dict[T, list[JobRank]]:
    groups: dict[T, list[JobRank]] = {}
    for rank in sorted(numbers):
        groups.setdefault(numbers[rank], []).append(rank)
    return groups


class Stragglers:
    """Detector of one world. It receives whole steps in their order, and reports each straggler once."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._ranks = sorted(layout.nodes)
        at = {rank: index for index, rank in enumerate(self._ranks)}
        groups = {node: [at[rank] for rank in ranks] for node, ranks in layout.ranks_by_node().items()}
        whole = len(groups) > 1 and min(map(len, groups.values())) > 1
        self._nodes: dict[NodeRank, list[int]] = groups if whole else {}
        self._stages = [[at[rank] for rank in ranks] for ranks in layout.ranks_by_stage().values()]
        self.restart()

    def restart(self) -> None:
        """Forget all that was learned: the world is a new one, or its processes are."""
        family = len(self._ranks) + len(self._nodes) + 1
        self._by_rank = Comparison(len(self._ranks), family)
        self._by_node = Comparison(len(self._nodes), family)
        self._network = Comparison(1, family, alone=True)
        self._given = Comparison(len(self._ranks), family)
        self._law = WorkLaw()
        self._window: deque[Column] = deque(maxlen=WINDOW)
        self._begun_at = -1
        self._seen = 0
        self._typical = math.nan
        self._seasonal = 0
        """Number of steps in a row that took everybody far longer than usual."""
        self.step_s, self._steps_timed = 0.0, 0
        """Length of a step, as the mean over many of them."""
        self.knows_work = False
        """True if the ranks report how much they were given to do."""
        self._stage_offsets = [0.0] * len(self._stages)
        self._stages_seen = 0
        self._stages_told = False

    def note(self, row: Sequence[Step]) -> tuple[Straggler, ...]:
        """Add the next step of all ranks, and return the new stragglers. A step that lacks a rank is not judged."""
        steps = sorted(row)
        if [one.rank for one in steps] != self._ranks or len(steps) < 2:
            return ()
        seen, self._seen = self._seen, self._seen + steps[0].steps
        if seen < WARM_UP:
            return ()
        values, given = self._values(steps)
        if self._of_season(values):
            return ()
        self._level_stages(values)
        column = Column(steps[0].step, steps[0].steps, array("d", values), *_columns(steps), array("d", given))
        self._begun_at = column.first if self._begun_at < 0 else self._begun_at
        self._window.append(column)
        slow_ranks = self._by_rank.note(values, column.steps)
        slow_nodes = self._by_node.note(
            [median([values[index] for index in indices]) for indices in self._nodes.values()], column.steps
        )
        links = self._network.note([column.transfer_s() / self._usual_step_s(column.lasted_s())], column.steps)
        heavy = self._given.note(given, column.steps) if any(given) else []
        return (
            *self._tell(slow_ranks, slow_nodes),
            *self._tell_link(links),
            *self._tell_work(heavy),
            *self._tell_stages(),
        )

    def times(self) -> dict[JobRank, tuple[float, float, float]]:
        """Return each rank's recent times for a step: its own, the waiting for others, and the waiting for data."""
        newest = [*self._window][-_LATELY:]
        return {
            rank: (
                median([column.own_s[index] for column in newest]),
                median([column.waited_s[index] for column in newest]),
                median([column.data_s[index] for column in newest]),
            )
            for index, rank in enumerate(self._ranks if newest else ())
        }

    def lasts(self, ranks: Sequence[JobRank]) -> bool:
        """Return whether all of these ranks are still as slow as was reported."""
        units = dict(zip(self._ranks, self._by_rank.units, strict=False))
        return all(rank in units and units[rank].told for rank in ranks)

    def steps_needed(self) -> float:
        """Return the steps after which a rank that becomes 10 % slower is found, in 99 of 100 cases.

        The result is inf during learning. The ranks' own noise decides it, whatever the method: times that vary by 6 %
        take some 25 steps, and times that vary by 30 % some 500.
        """
        return steps_needed(self._by_rank) if self._by_rank.units else math.inf

    # ---- values that are compared

    def _values(self, steps: Sequence[Step]) -> tuple[list[float], list[float]]:
        """Return the logarithm of each rank's time without the part that its work explains, and that part."""
        works = [one.work for one in steps]
        self.knows_work = min(works) > 0
        if not self.knows_work:
            return [math.log(one.busy_s) for one in steps], [0.0] * len(steps)
        given = self._law.effects(works)
        self._law.learn(works, [math.log(max(_LEAST_S, one.own_s)) for one in steps])
        return [
            math.log(max(_LEAST_S, one.own_s * math.exp(-effect) + one.data_s))
            for one, effect in zip(steps, given, strict=True)
        ], given

    def _of_season(self, values: Sequence[float]) -> bool:
        """Return whether this step takes everybody far longer than usual. Some such steps in a row become the usual."""
        centre = median(values)
        if self._typical != self._typical or self._seasonal == _SEASON_STEPS:
            self._typical = centre
        over = centre - self._typical
        self._typical += max(-0.3, min(0.3, over)) / _TYPICAL_STEPS
        self._seasonal = self._seasonal + 1 if over > _SEASON else 0
        return self._seasonal > 0

    def _usual_step_s(self, lasted_s: float) -> float:
        """Return the mean length of a step, over many of them: their lengths may vary."""
        self._steps_timed += 1
        kept_s = min(lasted_s, 3 * self.step_s) if self.step_s else lasted_s
        self.step_s += (kept_s - self.step_s) / min(self._steps_timed, _STEP_STEPS)
        return self.step_s

    def _level_stages(self, values: list[float]) -> None:
        """Take off the constant excess of a pipeline's stage over the other stages."""
        if len(self._stages) < 2:
            return
        centre = median(values)
        self._stages_seen += 1
        weight = 1 / min(self._stages_seen, _STAGE_STEPS)
        for number, indices in enumerate(self._stages):
            own = median([values[index] for index in indices]) - centre
            self._stage_offsets[number] += (own - self._stage_offsets[number]) * weight
            for index in indices:
                values[index] -= self._stage_offsets[number]

    # ---- reports

    def _tell(self, slow_ranks: Sequence[int], slow_nodes: Sequence[int]) -> list[Straggler]:
        """Return the stragglers among ranks and nodes, which are both given by their indices."""
        told = []
        for number in slow_nodes:
            indices = [*self._nodes.values()][number]
            unit = self._by_node.units[number]
            found = explain_unit(self._window, unit, indices, self._ranks, self._begun_at)
            if found is not None:
                unit.told = True
                self._mark(indices)
                told.append(found)
        for index in slow_ranks:
            unit = self._by_rank.units[index]
            if unit.told:
                continue
            found = explain_rank(self._window, unit, index, self._node_of(index), self._ranks, self._begun_at)
            if found is not None:
                self._mark([self._ranks.index(rank) for rank in found.ranks])
                told.append(found)
        return told

    def _node_of(self, index: int) -> list[int]:
        return next((indices for indices in self._nodes.values() if index in indices), [])

    def _mark(self, indices: Sequence[int]) -> None:
        for index in indices:
            self._by_rank.units[index].told = True

    def _tell_link(self, links: Sequence[int]) -> list[Straggler]:
        """Return the network as a straggler, unless a slow rank explains its delay."""
        blamed = [unit for unit in self._by_rank.units if unit.told or unit.score > self._by_rank.limit / 2]
        if not links or blamed:
            return []
        unit = self._network.units[0]
        unit.told = True
        lasted = min(unit.changed_steps, len(self._window))
        newest = [*self._window][-lasted:]
        waited_s = median([median(column.waited_s) for column in newest])
        rise = median([column.transfer_s() for column in newest]) / self.step_s - unit.history
        return [Straggler.of_link(newest, rise, waited_s, unit.score)]

    def _tell_work(self, heavy: Sequence[int]) -> list[Straggler]:
        told = []
        for index in heavy:
            unit = self._given.units[index]
            unit.told = True
            told.append(Straggler.of_work(self._ranks[index], [*self._window], unit.mean, unit.score))
        return told

    def _tell_stages(self) -> list[Straggler]:
        """Return a stage that has always had more to do: nobody's machine is slow."""
        if self._stages_told or self._stages_seen < _STAGE_STEPS // 4:
            return []
        middle = median(self._stage_offsets)
        worst = max(range(len(self._stages)), key=self._stage_offsets.__getitem__)
        excess = self._stage_offsets[worst] - middle
        if excess < SLOW - EVEN / 4:
            return []
        self._stages_told = True
        ranks = [self._ranks[index] for index in self._stages[worst]]
        return [Straggler.of_stages(ranks, self._begun_at, self._stages_seen, excess)]


def _columns(steps: Sequence[Step]) -> tuple[Sequence[float], Sequence[float], Sequence[float]]:
    return (
        array("d", [one.own_s for one in steps]),
        array("d", [one.waited_s for one in steps]),
        array("d", [one.data_s for one in steps]),
    )


def judge(rows: Sequence[Sequence[Step]], layout: Layout) -> tuple[Straggler, ...]:
    """Return the stragglers that these steps alone show. At least `WARM_UP` + `LEARN` steps are needed to find any."""
    detector = Stragglers(layout)
    return tuple(found for row in rows for found in detector.note(row))


__all__ = ["LEARN", "WARM_UP", "WINDOW", "SlowCause", "Layout", "Step", "Straggler", "Stragglers", "judge"]
