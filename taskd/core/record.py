"""The record of one fault, from the first report to the next committed step: what was done, how long it took.

Times are seconds on the manager's monotonic clock, when the manager heard of the last rank that reached the milestone.
`pause` and `replace` run side by side, so the phases do not add up to the total.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from taskd.core.findings import Diagnosis
from taskd.core.policy import Strategy
from taskd.core.world import RankView


@dataclass(slots=True)
class FaultRecord:
    """One fault and its recovery."""

    detected_s: float
    step: int
    """Newest committed step that was known when the fault struck."""
    generation: int = 0
    strategy: Strategy = Strategy.EXIT
    restart: bool = False
    reason: str = ""
    causes: dict[int, str] = field(default_factory=dict)
    """Rank to what ended its process, or the error it came out with."""
    fault: int = 0
    """Its number; 0 if nothing has failed."""
    diagnosis: Diagnosis | None = None
    attempts: int = 0
    setbacks: list[str] = field(default_factory=list)
    """The attempts that failed, and why."""
    target_step: int = -1
    paused_s: float | None = None
    replaced_s: float | None = None
    planned_s: float | None = None
    joined_s: float | None = None
    restored_s: float | None = None
    resumed_s: float | None = None
    kept: dict[int, int] = field(default_factory=dict)
    """Rank to PID of the processes that lived through it."""
    replaced: dict[int, int] = field(default_factory=dict)
    """Rank to PID of the new processes."""
    warm: dict[int, bool] = field(default_factory=dict)

    def begin_attempt(self, generation: int) -> None:
        """Another world is tried: the milestones of the former one do not count."""
        self.generation = generation
        self.target_step = -1
        self.paused_s = self.replaced_s = self.planned_s = self.joined_s = self.restored_s = None

    def close(self, now_s: float, ranks: Mapping[int, RankView]) -> None:
        """Training has resumed: note who lived through it and who is new."""
        self.resumed_s = now_s
        for rank, view in ranks.items():
            if view.status is None:
                continue
            replaced = self.restart or view.joins
            (self.replaced if replaced else self.kept)[rank] = view.status.pid
            if replaced:
                self.warm[rank] = view.status.warm

    def phases_ms(self) -> dict[str, float]:
        """Length of each phase that was reached, in milliseconds.

        `total` runs from detection to the committed step. Where all start anew there is `started` in its place: until
        all new processes run. What a script does then, and where it goes on, it alone knows.
        """
        spans = {
            "pause": (self.detected_s, self.paused_s),
            "replace": (self.detected_s, self.replaced_s),
            "rebuild": (self.planned_s, self.joined_s),
            "restore": (self.joined_s, self.restored_s),
            "first_step": (self.restored_s, self.resumed_s),
            "started" if self.restart else "total": (self.detected_s, self.resumed_s),
        }
        return {
            name: round((end - start) * 1e3, 3)
            for name, (start, end) in spans.items()
            if start is not None and end is not None
        }


def tell(causes: Mapping[int, str]) -> str:
    """The causes of a fault in words."""
    return "; ".join(f"rank {rank}: {cause or 'unknown cause'}" for rank, cause in sorted(causes.items()))
