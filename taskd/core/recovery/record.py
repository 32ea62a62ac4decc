"""Record of one fault, from the first report to the next committed step: the actions and their durations.

Times are seconds on the manager's monotonic clock. Each is the time at which the manager received the report of the
last rank that reached the milestone. `pause` and `replace` run side by side, so the phases do not add up to the total.
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
    """Times at which all ranks had reached each milestone in the newest attempt; None before that."""

    paused_s: float | None = None
    replaced_s: float | None = None
    planned_s: float | None = None
    joined_s: float | None = None
    restored_s: float | None = None
    resumed_s: float | None = None


@dataclass(slots=True)
class ProcessesOfFault:
    """PIDs by rank: of the processes that lived through the fault, and of the new ones."""

    kept: dict[JobRank, int] = field(default_factory=dict)
    replaced: dict[JobRank, int] = field(default_factory=dict)
    warm: dict[JobRank, bool] = field(default_factory=dict)
    """For each new process, True if it was started before it was needed."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """Point from which training goes on."""

    step: int = -1
    """Step that every rank holds then; -1 if it is not known."""
    redone: int = 0
    """Committed steps that are done again, because all ranks have gone back to copies or to a checkpoint."""
    inexact: tuple[tuple[JobRank, str], ...] = ()
    """Parts that are not exactly as before, by rank, as far as they are known."""


@dataclass(slots=True)
class FaultRecord:
    """One fault and its recovery."""

    detected_s: float
    step: int
    """Newest committed step that was known when the fault struck."""
    causes: dict[JobRank, Cause] = field(default_factory=dict)
    """Why each rank's process ended, or the error it raised."""
    fault: int = 0
    """Number of the fault; 0 if nothing has failed."""
    generation: int = 0
    decision: Decision = NOTHING
    diagnosis: Diagnosis | None = None
    attempts: int = 0
    setbacks: list[str] = field(default_factory=list)
    """Attempts that failed, with their reasons."""
    resumption: Resumption = Resumption()
    milestones: Milestones = field(default_factory=Milestones)
    processes: ProcessesOfFault = field(default_factory=ProcessesOfFault)

    @property
    def reason(self) -> str:
        """Reason for the recovery, in words: that of the decision if nothing has failed."""
        return tell(self.causes) or self.decision.reason

    @property
    def target_step(self) -> int:
        """Step that every rank holds when training resumes; -1 if it is not known."""
        return self.resumption.step

    def begin_attempt(self, generation: int) -> None:
        """Begin another attempt: the milestones of the former one do not count."""
        self.generation = generation
        self.resumption = Resumption(redone=self.resumption.redone)
        self.milestones = Milestones()

    def close(self, now_s: float, ranks: Mapping[JobRank, RankView]) -> None:
        """Record that training has resumed, with the processes that lived through the fault and the new ones."""
        self.milestones.resumed_s = now_s
        for rank, view in ranks.items():
            if view.status is None:
                continue
            replaced = self.decision.restart or view.joins
            (self.processes.replaced if replaced else self.processes.kept)[rank] = view.status.pid
            if replaced:
                self.processes.warm[rank] = view.status.warm
        if self.decision.strategy is Strategy.RECOVER and self.processes.kept and not self.processes.replaced:
            self.decision = replace(self.decision, reason=CAME_BACK)  # its node reported before it was replaced
        if not self.decision.restart:
            told = ((rank, view.status.inexact) for rank, view in ranks.items() if view.status is not None)
            self.resumption = replace(self.resumption, inexact=tuple(sorted(one for one in told if one[1])))

    def phases_ms(self) -> dict[str, float]:
        """Return the length of each phase that was reached, in milliseconds.

        `total` runs from detection to the committed step. After a restart of all processes, `started` takes its
        place: the time until all new processes run. Only the script knows its further actions and its next step.
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
    """Return the causes of a fault in words."""
    return "; ".join(f"rank {rank}: {cause.text or 'unknown cause'}" for rank, cause in sorted(causes.items()))
