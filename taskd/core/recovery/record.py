"""The record of one fault, from the first report to the next committed step: what was done, how long it took.

Times are seconds on the manager's monotonic clock, when the manager heard of the last rank that reached the milestone.
`pause` and `replace` run side by side, so the phases do not add up to the total.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from taskd.core.diagnosis.findings import Diagnosis
from taskd.core.policy import Strategy
from taskd.core.recovery.causes import Cause
from taskd.core.recovery.strategy import Decision
from taskd.core.recovery.world import RankView
from taskd.wire.kinds import JobRank

CAME_BACK: Final = "the lost nodes were heard again before others took their places: all stay"
NOTHING: Final = Decision(Strategy.EXIT, False, "")


@dataclass(slots=True)
class Milestones:
    """When all ranks had come so far in the newest attempt; None as long as they have not."""

    paused_s: float | None = None
    replaced_s: float | None = None
    planned_s: float | None = None
    joined_s: float | None = None
    restored_s: float | None = None
    resumed_s: float | None = None


@dataclass(slots=True)
class ProcessesOfFault:
    """By rank the PIDs of those that lived through it, and of the new ones."""

    kept: dict[JobRank, int] = field(default_factory=dict)
    replaced: dict[JobRank, int] = field(default_factory=dict)
    warm: dict[JobRank, bool] = field(default_factory=dict)
    """Of the new ones, whether they had been started before they were needed."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """Where training goes on."""

    step: int = -1
    """The one that every rank holds then; -1 if that is not known."""
    redone: int = 0
    """Committed steps that are done again, since all have gone back to copies, or to a checkpoint."""
    inexact: tuple[tuple[JobRank, str], ...] = ()
    """By rank what is not exactly as before, as far as it is known."""


@dataclass(slots=True)
class FaultRecord:
    """One fault and its recovery."""

    detected_s: float
    step: int
    """Newest committed step that was known when the fault struck."""
    causes: dict[JobRank, Cause] = field(default_factory=dict)
    """Rank to what ended its process, or the error it came out with."""
    fault: int = 0
    """Its number; 0 if nothing has failed."""
    generation: int = 0
    decision: Decision = NOTHING
    diagnosis: Diagnosis | None = None
    attempts: int = 0
    setbacks: list[str] = field(default_factory=list)
    """The attempts that failed, and why."""
    resumption: Resumption = Resumption()
    milestones: Milestones = field(default_factory=Milestones)
    processes: ProcessesOfFault = field(default_factory=ProcessesOfFault)

    @property
    def reason(self) -> str:
        """Why it is recovered from, in words: the choice itself where nothing has failed."""
        return tell(self.causes) or self.decision.reason

    @property
    def target_step(self) -> int:
        """The step that every rank holds when training resumes; -1 if that is not known."""
        return self.resumption.step

    def begin_attempt(self, generation: int) -> None:
        """Another world is tried: the milestones of the former one do not count."""
        self.generation = generation
        self.resumption = Resumption(redone=self.resumption.redone)
        self.milestones = Milestones()

    def close(self, now_s: float, ranks: Mapping[JobRank, RankView]) -> None:
        """Training has resumed: note who lived through it and who is new."""
        self.milestones.resumed_s = now_s
        for rank, view in ranks.items():
            if view.status is None:
                continue
            replaced = self.decision.restart or view.joins
            (self.processes.replaced if replaced else self.processes.kept)[rank] = view.status.pid
            if replaced:
                self.processes.warm[rank] = view.status.warm
        if self.decision.strategy is Strategy.RECOVER and self.processes.kept and not self.processes.replaced:
            self.decision = replace(self.decision, reason=CAME_BACK)  # the node was heard again before it was replaced
        if not self.decision.restart:
            told = ((rank, view.status.inexact) for rank, view in ranks.items() if view.status is not None)
            self.resumption = replace(self.resumption, inexact=tuple(sorted(one for one in told if one[1])))

    def phases_ms(self) -> dict[str, float]:
        """Length of each phase that was reached, in milliseconds.

        `total` runs from detection to the committed step. Where all start anew there is `started` in its place: until
        all new processes run. What a script does then, and where it goes on, it alone knows.
        """
        at = self.milestones
        spans = {
            "pause": (self.detected_s, at.paused_s),
            "replace": (self.detected_s, at.replaced_s),
            "rebuild": (at.planned_s, at.joined_s),
            "restore": (at.joined_s, at.restored_s),
            "first_step": (at.restored_s, at.resumed_s),
            "started" if self.decision.restart else "total": (self.detected_s, at.resumed_s),
        }
        return {
            name: round((end - start) * 1e3, 3)
            for name, (start, end) in spans.items()
            if start is not None and end is not None
        }


def tell(causes: Mapping[JobRank, Cause]) -> str:
    """The causes of a fault in words."""
    return "; ".join(f"rank {rank}: {cause.text or 'unknown cause'}" for rank, cause in sorted(causes.items()))
