"""What is reported of a job while it trains, and changes nothing: slow ranks, and losses that are not finite.

Rules:

1. What has become slow is reported once, and again only after it was not (`stragglers`). If the job wants it, and the
   machine is to blame, its node leaves: at once, or when a spare comes while it still is slow.
2. Losses that are not finite within 100 steps are one fault: the first of a rank, and what it has done to the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from taskd.core.diagnosis.diagnose import diagnose
from taskd.core.diagnosis.evidence import Evidence
from taskd.core.recovery.actions import Note
from taskd.core.recovery.case import report
from taskd.core.stragglers.detector import Layout
from taskd.core.stragglers.diagnosis import Straggler
from taskd.core.stragglers.exclusion import Exclusion, exclusion
from taskd.core.stragglers.pacing import Pacing
from taskd.wire.kinds import JobRank
from taskd.wire.messages import RankSpan

if TYPE_CHECKING:
    from taskd.core.recovery.job import Job

_ONE_STREAK_STEPS = 100


@dataclass(slots=True)
class PaceFacts:
    """What was seen of a job that gets on."""

    pacing: Pacing | None = None
    """Of the present world."""
    compared_s: float = 0.0
    slow: list[Straggler] = field(default_factory=list)
    """Whose nodes may have to leave."""
    refused: set[str] = field(default_factory=set)
    """Why none of them did, as far as it was reported."""
    not_finite: dict[JobRank, Evidence] = field(default_factory=dict)
    reported: tuple[JobRank, ...] = ()
    """The ranks that were named for losses that are not finite."""


def forget_paces(pace: PaceFacts) -> None:
    """The world is another one."""
    pace.pacing = None
    pace.slow.clear()
    pace.refused.clear()


def note_spans(job: "Job", spans: Sequence[RankSpan]) -> None:
    """What ranks report of their newest steps."""
    pace, world = job.pace, job.world
    if pace.pacing is None:
        crowded = any(0 < view.status.cores < len(view.status.ranks) for view in world.nodes.by_place.values())
        stages = {rank: job.policy.stage_of(rank) for rank in world.ranks}
        nodes = {rank: view.node_rank for rank, view in world.ranks.items()}
        pace.pacing = Pacing(Layout(nodes, stages), crowded=crowded)
    pace.pacing.hear(spans)


def compare_paces(job: "Job", now_s: float) -> Exclusion | None:
    """Report what has become slow. Returns whose node is to leave for that, if one is."""
    pace, pacing = job.pace, job.pace.pacing
    if pacing is None or now_s - pace.compared_s < pacing.every_s:
        return None
    pace.compared_s = now_s
    for found in pacing.found():
        job.case.faults += 1
        report(job, now_s, *pacing.diagnosis(found), reported=True)
        if job.policy.recover_slow and found.blamed:
            pace.slow.append(found)
    pace.slow = [found for found in pace.slow if pacing.lasts(found)]
    for found in pace.slow:
        leaves = exclusion(found, pacing.layout, len(job.world.nodes.usable()), even=pacing.knows_work)
        if leaves.places:
            return leaves
        if leaves.reason not in pace.refused:
            pace.refused.add(leaves.reason)
            job.out.append(Note(f"no node leaves for being slow: {leaves.reason}"))
    return None


def note_not_finite(job: "Job", now_s: float, seen: Mapping[JobRank, Evidence]) -> None:
    """Report losses that were NaN or infinite, with the rank that was the first to see one."""
    pace = job.pace
    before = set(pace.not_finite)
    newest = [known.non_finite.step for known in seen.values() if known.non_finite is not None]
    first = min((known.non_finite.step for known in pace.not_finite.values() if known.non_finite), default=None)
    if first is not None and min(newest) > first + _ONE_STREAK_STEPS:
        pace.not_finite.clear()
        before = set()
    for rank, known in seen.items():
        pace.not_finite.setdefault(rank, Evidence(known.node, known.process, non_finite=known.non_finite))
    if set(pace.not_finite) == before:
        return
    diagnosis = diagnose(pace.not_finite)
    if diagnosis is None or (before and diagnosis.culprits == pace.reported):
        return
    job.case.faults += not before
    pace.reported = diagnosis.culprits
    report(job, now_s, diagnosis, dict(pace.not_finite), reported=True)
