"""What is told of a job while it trains, and changes nothing: slow ranks, and losses that are not finite.

Rules:

1. What has become slow is told once, and again only after it was not (`stragglers`). If the job wants it, and the
   machine is to blame, its node leaves: at once, or when a spare comes while it still is slow.
2. Losses that are not finite within 100 steps are one fault: the first of a rank, and what it has done to the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from taskd.core.attempts import Attempts
from taskd.core.diagnosis import diagnose
from taskd.core.evidence import Evidence
from taskd.core.findings import Diagnosis
from taskd.core.phases import Diagnosed, Note
from taskd.core.stragglers.detector import Layout
from taskd.core.stragglers.diagnosis import Straggler
from taskd.core.stragglers.exclusion import Exclusion, exclusion
from taskd.core.stragglers.pacing import Pacing
from taskd.core.watch import Watch
from taskd.wire.messages import RankSpan

_ONE_STREAK_STEPS = 100


@dataclass(slots=True)
class Notices(Attempts):
    """What was seen of a job that gets on."""

    watch: Watch = field(default_factory=Watch)
    _fault_since_s: float | None = None
    _pacing: Pacing | None = None
    """Of the present world."""
    _compared_s: float = 0.0
    _slow: list[Straggler] = field(default_factory=list)
    """Whose nodes may have to leave."""
    _refused: set[str] = field(default_factory=set)
    """Why none of them did, as far as it was told."""
    _not_finite: dict[int, Evidence] = field(default_factory=dict)
    _told_not_finite: tuple[int, ...] = ()

    def tell(self, diagnosis: Diagnosis, evidence: Mapping[int, Evidence], *, reported: bool) -> None:
        """The newest fault has this diagnosis. `reported`: nothing else tells of it."""
        self._out.append(
            Diagnosed(
                fault=self.faults,
                diagnosis=diagnosis,
                evidence=evidence,
                hang=self.watch.hang,
                since_s=self._now_s if self._fault_since_s is None else self._fault_since_s,
                step=max(self.step, self.watch.newest_step()),
                generation=self.world.generation,
                reported=reported,
            )
        )

    def note_spans(self, spans: Sequence[RankSpan]) -> None:
        """What ranks say of their newest steps."""
        if self._pacing is None:
            world = self.world
            crowded = any(0 < view.status.cores < len(view.status.ranks) for view in world.nodes.values())
            stages = {rank: self.policy.stage_of(rank) for rank in world.ranks}
            nodes = {rank: view.node_rank for rank, view in world.ranks.items()}
            self._pacing = Pacing(Layout(nodes, stages), crowded=crowded)
        self._pacing.hear(spans)

    def forget_paces(self) -> None:
        """The world is another one."""
        self._pacing = None
        self._slow.clear()
        self._refused.clear()

    def compare_paces(self) -> Exclusion | None:
        """Tell of what has become slow. Returns whose node is to leave for that, if one is."""
        if self._pacing is None or self._now_s - self._compared_s < self._pacing.every_s:
            return None
        self._compared_s = self._now_s
        for found in self._pacing.found():
            self.faults += 1
            self.tell(*self._pacing.diagnosis(found), reported=True)
            if self.policy.recover_slow and found.blamed:
                self._slow.append(found)
        self._slow = [found for found in self._slow if self._pacing.lasts(found)]
        for found in self._slow:
            leaves = exclusion(found, self._pacing.layout, len(self.world.usable()), even=self._pacing.knows_work)
            if leaves.places:
                return leaves
            if leaves.reason not in self._refused:
                self._refused.add(leaves.reason)
                self._out.append(Note(f"no node leaves for being slow: {leaves.reason}"))
        return None

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
        diagnosis = diagnose(self._not_finite)
        if diagnosis is None or (before and diagnosis.culprits == self._told_not_finite):
            return
        self.faults += not before
        self._told_not_finite = diagnosis.culprits
        self.tell(diagnosis, dict(self._not_finite), reported=True)
