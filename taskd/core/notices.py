"""What is told of a job while it trains, and changes nothing: slow ranks, and losses that are not finite.

Rules:

1. A rank is told of as slow when it was slower than the others in `SLOW_IN_A_ROW` comparisons, once, and again only
   after it was not.
2. Losses that are not finite within 100 steps are one fault: the first of a rank, and what it has done to the others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from taskd.core.attempts import Attempts
from taskd.core.diagnosis import diagnose
from taskd.core.evidence import Evidence, Pace
from taskd.core.phases import Diagnosed
from taskd.core.verdict import Kind, Verdict
from taskd.core.watch import Watch

PACE_S = 2.0
"""So often the paces of the ranks are compared."""
SLOW_IN_A_ROW = 2
_ONE_STREAK_STEPS = 100


@dataclass(slots=True)
class Notices(Attempts):
    """What was seen of a job that gets on."""

    watch: Watch = field(default_factory=Watch)
    _fault_since_s: float | None = None
    _paces: dict[int, Pace] = field(default_factory=dict)
    _compared_s: float = 0.0
    _slow: dict[int, int] = field(default_factory=dict)
    """How often in a row a rank was found slow."""
    _not_finite: dict[int, Evidence] = field(default_factory=dict)
    _told_not_finite: tuple[int, ...] = ()

    def tell(self, verdict: Verdict, evidence: Mapping[int, Evidence], *, reported: bool) -> None:
        """The newest fault has this verdict. `reported`: nothing else tells of it."""
        self._out.append(
            Diagnosed(
                fault=self.faults,
                verdict=verdict,
                evidence=evidence,
                hang=self.watch.hang,
                since_s=self._now_s if self._fault_since_s is None else self._fault_since_s,
                step=max(self.step, self.watch.newest_step()),
                generation=self.world.generation,
                reported=reported,
            )
        )

    def compare_paces(self) -> None:
        """Tell of ranks that have become slow."""
        if self._now_s - self._compared_s < PACE_S or not self._paces:
            return
        self._compared_s = self._now_s
        paces = {rank: pace for rank, pace in self._paces.items() if rank in self.world.ranks}
        evidence = {rank: Evidence(self.world.ranks[rank].node_rank, pace=pace) for rank, pace in paces.items()}
        verdict = diagnose(evidence)
        slow = verdict.culprits if verdict is not None and verdict.kind is Kind.SLOW else ()
        self._slow = {rank: self._slow.get(rank, 0) + 1 for rank in slow}
        if verdict is not None and SLOW_IN_A_ROW in self._slow.values():
            self.faults += 1
            self.tell(verdict, evidence, reported=True)

    def tell_not_finite(self, seen: Mapping[int, Evidence]) -> None:
        """Tell of losses that were NaN or infinite, with the rank that was the first to see one."""
        before = set(self._not_finite)
        newest = [known.non_finite.step for known in seen.values() if known.non_finite is not None]
        first = min((known.non_finite.step for known in self._not_finite.values() if known.non_finite), default=None)
        if first is not None and min(newest) > first + _ONE_STREAK_STEPS:
            self._not_finite.clear()
            before = set()
        for rank, known in seen.items():
            self._not_finite.setdefault(rank, Evidence(known.node, known.process, non_finite=known.non_finite))
        if set(self._not_finite) == before:
            return
        verdict = diagnose(self._not_finite)
        if verdict is None or (before and verdict.culprits == self._told_not_finite):
            return
        self.faults += not before
        self._told_not_finite = verdict.culprits
        self.tell(verdict, dict(self._not_finite), reported=True)
