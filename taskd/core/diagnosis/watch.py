"""Watch over a job's progress, and over the reports of its ranks when it makes none.

Rules:

1. Agents report the newest step of their ranks and its age. From these, the job's rhythm decides when silence is a
   hang. Only nodes with a rank that trains count: a script without the SDK has no rhythm, and so no hang.
2. A hang is a suspicion until the ranks are asked. It is withdrawn if one of them has made progress meanwhile. It is
   also withdrawn if the only evidence is silence and a rank evaluates or writes a checkpoint: the limits of that phase
   apply then.
3. The ranks are asked early, without regard to the gaps that the job has shown. That counts only if a rank is proven to
   stand still. A suspicion that is not proven (`proof.py`) is reported once. Then the ranks are asked again and again,
   at growing intervals. The suspicion is acted upon once it is proven, or once `unproven_s` is over. That is a setting,
   and at least some times the longest gap that the job has shown. An interrupted silence counts as such a gap.
4. Alarms at the same step point to the script's own way of working, and each makes that more likely. The second needs
   `AGAIN_S[0]` of silence, and each further one `AGAIN_S[1]`. So a gap that nobody could foresee does not end a job.
5. Evidence of a process that has ended stays until training goes on. Its ages grow.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from taskd.core.diagnosis.diagnose import diagnose
from taskd.core.diagnosis.evidence import Evidence, Standing
from taskd.core.diagnosis.findings import PRESUMED, Diagnosis, Kind
from taskd.core.diagnosis.rhythm import Activity, Hang, JobRhythm
from taskd.core.policy import Tempo
from taskd.wire.kinds import JobRank, NodeRank
from taskd.wire.messages import Progress

AGAIN_S: Final = (60.0, 1800.0)
ANSWER_S: Final = 0.5
"""Time to wait for the answers of the agents, in seconds."""
ASK_AGAIN_S: Final = 2.0
"""Least time between two queries about an unproven suspicion, in seconds; a quarter of the silence if that is more."""
_RARER: Final = 0.25
_ACTIVITIES: Final = {Standing.EVALUATION: Activity.EVALUATION, Standing.CHECKPOINT: Activity.CHECKPOINT}
_SILENCE: Final = (
    *PRESUMED,
    Kind.WAITING,
    Kind.LOCK_FILE,
    Kind.DEADLOCK,
    Kind.GIL_HELD,
    Kind.UNINTERRUPTIBLE,
    Kind.CONNECTION_CUT,
    Kind.SILENT,
)
"""Kinds that may also be found when ranks only wait for one that evaluates or writes a checkpoint."""

_ASLEEP: Final = (Kind.LOCK_FILE, Kind.DEADLOCK, Kind.BLOCKED, Kind.GIL_HELD)
"""Kinds that no phase explains once it is proven that the processes sleep for good."""


@dataclass(slots=True)
class Doubt:
    """A suspicion that was reported and is not proven.

    Attributes:
        since_s: start of the time without progress.
        fault: number of the fault under which it was reported.
        until_s: time at which `unproven_s` is over.
        next_s: time at which the ranks are asked again.

    """

    since_s: float
    step: int
    fault: int
    until_s: float
    next_s: float = 0.0


@dataclass(slots=True)
class Watch:
    """Progress of one job, and the evidence of one fault."""

    tempo: Tempo = field(default_factory=Tempo)
    rhythm: JobRhythm = field(init=False)
    hang: Hang | None = None
    """The suspicion about which the ranks are being asked."""
    probe: int = 0
    """Number of the newest query."""
    asked_s: float | None = None
    """Time of the newest query, while it is open."""
    asked: int = 0
    """Count of queries since the last time none was open."""
    answered: set[str] = field(default_factory=set)
    _evidence: dict[JobRank, tuple[Evidence, float]] = field(default_factory=dict)
    _active: set[NodeRank] = field(default_factory=set)
    """Nodes with a rank that trains."""
    _alarm: tuple[int, int] = (-1, 0)
    """Step of the newest alarm, and the number of alarms at that step."""
    doubt: Doubt | None = None
    """The suspicion that is not proven, as long as it lasts."""
    _glanced: tuple[float, float] = (-1.0, 0.0)
    """Start of the silence at the newest early query, and the earliest time of the next one."""

    def __post_init__(self) -> None:
        """Create the rhythm. Nothing is known of the job yet."""
        self.rhythm = JobRhythm(self.tempo)

    # ---- progress

    def begin(self, now_s: float) -> None:
        """Start training, or start it again."""
        self.rhythm.begin(now_s)
        self._active.clear()
        self.doubt = None
        self.close()

    def progress(self, place: NodeRank, progress: Progress | None, now_s: float) -> None:
        """Record a node's report on the newest step of its ranks; None if no rank of it trains."""
        if progress is None:
            self._active.discard(place)
            return
        rhythm = self.rhythm.rhythm
        if rhythm.progress_s is None:
            self.rhythm.begin(now_s)
        self._active.add(place)
        since_s = rhythm.progress_s if rhythm.progress_s is not None else now_s
        at_s = max(now_s - progress.age_s, since_s)
        if progress.step > rhythm.step and rhythm.activity is not Activity.TRAINING:
            for other in sorted(self._active):
                self.rhythm.announce(other, Activity.TRAINING, at_s)
        self.rhythm.commit(place, progress.step, at_s)

    @property
    def due_s(self) -> float | None:
        """Time at which silence becomes a hang; None if it cannot become one."""
        rhythm, deadline_s = self.rhythm.rhythm, self.rhythm.deadline_s
        if deadline_s is None or rhythm.progress_s is None or not self._active:
            return None
        step, times = self._alarm
        if times and step >= rhythm.step:
            deadline_s = max(deadline_s, rhythm.progress_s + AGAIN_S[min(times, len(AGAIN_S)) - 1])
        if self.doubt is not None and self.doubt.since_s == rhythm.progress_s:
            deadline_s = max(deadline_s, self.doubt.next_s)
        return deadline_s

    @property
    def ask_s(self) -> float | None:
        """Time of the next query to the ranks, early ones included."""
        due_s, rhythm = self.due_s, self.rhythm.rhythm
        step, times = self._alarm
        told = self.doubt is not None and self.doubt.since_s == rhythm.progress_s
        if due_s is None or rhythm.progress_s is None or told or (times and step >= rhythm.step):
            return due_s
        since_s, next_s = self._glanced
        early_s = rhythm.progress_s + rhythm.early_limit_s
        return min(due_s, max(early_s, next_s) if since_s == rhythm.progress_s else early_s)

    def question(self, now_s: float) -> Hang | None:
        """Return the suspicion about which the ranks must be asked now; None if no query is due."""
        ask_s = self.ask_s
        if ask_s is None or now_s <= ask_s:
            return None
        due_s = self.due_s
        hang = self.rhythm.hang(now_s) if due_s is not None and now_s > due_s else None
        return hang or self.rhythm.rhythm.glance(now_s)

    def glanced(self, now_s: float) -> None:
        """Record that an early query has proven nothing: the job's known gaps explain the silence so far."""
        if self.hang is not None:
            self._glanced = (self.hang.since_s, now_s + max(ASK_AGAIN_S, _RARER * self.hang.silent_s))

    # ---- evidence

    def ask(self, probe: int, now_s: float, hang: Hang | None) -> None:
        """Record that the agents are asked. Each answers this number once."""
        self.asked = self.asked + 1 if self.asked_s is not None else 1
        self.probe, self.asked_s, self.hang = probe, now_s, hang
        self.answered.clear()

    def hear(self, agent_id: str, probe: int, evidence: Mapping[JobRank, Evidence], now_s: float) -> None:
        """Record an agent's report, asked for or not."""
        if probe == self.probe:
            self.answered.add(agent_id)
        for rank, known in evidence.items():
            before = self._evidence.get(rank)
            if before is None or before[0].end.ending is None or known.end.ending is not None:
                self._evidence[rank] = (known, now_s)

    def evidence(self, now_s: float) -> dict[JobRank, Evidence]:
        """Return the evidence so far, aged to this moment."""
        return {rank: _aged(known, now_s - heard_s) for rank, (known, heard_s) in self._evidence.items()}

    def diagnosis(self, members: Collection[JobRank], now_s: float) -> Diagnosis | None:
        """Return the diagnosis from the evidence so far; None without evidence and hang, or if nothing is wrong."""
        known = self.evidence(now_s)
        return diagnose(known, members, self.hang) if known or self.hang is not None else None

    def got_on(self) -> bool:
        """Return whether a rank has committed a step after the one at which the suspicion arose."""
        hang = self.hang
        return hang is not None and max(self.rhythm.rhythm.step, self.newest_step()) > hang.step

    def newest_step(self) -> int:
        """Return the newest step that any rank's evidence has; -1 without any."""
        steps = (known.position.step for known, _ in self._evidence.values())
        return max((step for step in steps if step is not None), default=-1)

    def excuse(self, diagnosis: Diagnosis | None) -> tuple[NodeRank, Activity] | None:
        """Return the node whose phase explains the silence, and that phase; None if there is none."""
        if self.hang is None or (diagnosis is not None and not _may_be_silence(diagnosis)):
            return None
        for _, (known, _) in sorted(self._evidence.items()):
            said = known.position.standing
            activity = _ACTIVITIES.get(said) if said is not None and not known.gone else None
            if known.node is not None and activity is not None and activity is not self.rhythm.rhythm.activity:
                return known.node, activity
        return None

    @property
    def unproven_s(self) -> float:
        """Time after its report for which an unproven suspicion waits, in seconds: its culprits may be at work."""
        return max(self.tempo.unproven_s, self.tempo.unproven_gaps * self.rhythm.rhythm.longest_s)

    def patient(self, now_s: float) -> bool:
        """Return whether culprits that may be at work are still waited for."""
        hang, doubt = self.hang, self.doubt
        if hang is None:
            return False
        known = doubt is not None and doubt.since_s == hang.since_s
        return now_s < (doubt.until_s if doubt is not None and known else now_s + self.unproven_s)

    def wait(self, fault: int, now_s: float) -> None:
        """Keep an unproven suspicion open: the ranks are asked about it again, until `unproven_s` is over."""
        hang, doubt = self.hang, self.doubt
        if hang is None:
            return
        if doubt is None or doubt.since_s != hang.since_s:
            doubt = self.doubt = Doubt(hang.since_s, hang.step, fault, until_s=now_s + self.unproven_s)
        doubt.next_s = min(now_s + max(ASK_AGAIN_S, _RARER * hang.silent_s), max(doubt.until_s, now_s))

    def next_alarm(self) -> int:
        """Return the number of alarms at this step, with one more."""
        step, times = self._alarm
        return times + 1 if self.hang is not None and step >= self.hang.step else 1

    def alarm(self) -> None:
        """Record that the suspicion was well founded, as far as is known."""
        if self.hang is not None:
            self._alarm = (self.hang.step, self.next_alarm())

    def close(self) -> None:
        """Forget all reports: nothing is wrong, or not any more."""
        self.hang, self.asked_s = None, None
        self.answered.clear()
        self._evidence.clear()


def _may_be_silence(diagnosis: Diagnosis) -> bool:
    return diagnosis.kind in _SILENCE and not (diagnosis.proven and diagnosis.kind in _ASLEEP)


def _aged(known: Evidence, more_s: float) -> Evidence:
    """Return the same evidence some time later. Only the age of an end is compared with those of others."""
    ending = known.end.ending
    if ending is None or ending.age_s is None or more_s <= 0:
        return known
    return replace(known, end=replace(known.end, ending=replace(ending, age_s=ending.age_s + more_s)))
