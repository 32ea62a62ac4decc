"""Whether a job gets on, and what its ranks have reported if it does not.

Rules:

1. Agents report the newest step of their ranks and its age; from that the job's rhythm says when silence is a hang.
   Only nodes with a rank that trains count: a script without the SDK has no rhythm, and is never said to hang.
2. A hang is a suspicion until the ranks are asked. It is withdrawn if one of them has got on meanwhile, or if nothing
   but silence speaks against them and one evaluates or writes a checkpoint: then that is the rhythm of such a phase.
3. The ranks are asked early, without regard to the gaps that the job has shown; that counts only if a rank is proven to
   stand. A suspicion that is not proven (`proof.py`) is told once. Then the ranks are asked again and again, ever
   more rarely: if it is proven by then, or `unproven_s` is over, it is acted upon. It is a setting, and at least some
   times the longest gap that the job has shown. What was interrupted so counts as such a gap.
4. Alarms at one and the same step are the script's own way of working, more likely with each: the second needs
   `AGAIN_S[0]` of silence, each further one `AGAIN_S[1]`. So a gap that nobody could know does not end a job.
5. Evidence of a process that has ended stays until training goes on; its ages grow.
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
"""For so long the answers of the agents are waited for."""
ASK_AGAIN_S: Final = 2.0
"""After a suspicion that is not proven, the next question comes so much later, and after a quarter of the silence."""
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
"""What a rank that evaluates or writes looks like to those that wait for it, too."""

_ASLEEP: Final = (Kind.LOCK_FILE, Kind.DEADLOCK, Kind.BLOCKED, Kind.GIL_HELD)
"""If it is proven that these sleep for good, no phase explains it."""


@dataclass(slots=True)
class Doubt:
    """A suspicion that was told and is not proven.

    Attributes:
        since_s: since when there was no progress.
        fault: the number that it was told by.
        until_s: after `unproven_s`.
        next_s: when the ranks are asked again.

    """

    since_s: float
    step: int
    fault: int
    until_s: float
    next_s: float = 0.0


@dataclass(slots=True)
class Watch:
    """The progress of one job, and the evidence of one fault."""

    tempo: Tempo = field(default_factory=Tempo)
    rhythm: JobRhythm = field(init=False)
    hang: Hang | None = None
    """The suspicion that the ranks are being asked about."""
    probe: int = 0
    """Number of the newest question."""
    asked_s: float | None = None
    """When it was asked, if it is open."""
    asked: int = 0
    """How often it was."""
    answered: set[str] = field(default_factory=set)
    _evidence: dict[JobRank, tuple[Evidence, float]] = field(default_factory=dict)
    _active: set[NodeRank] = field(default_factory=set)
    """Nodes with a rank that trains."""
    _alarm: tuple[int, int] = (-1, 0)
    """The step of the newest alarm, and how many there were at it."""
    doubt: Doubt | None = None
    """The suspicion that is not proven, as long as it lasts."""
    _glanced: tuple[float, float] = (-1.0, 0.0)
    """Since when the job had been silent when it was last asked early, and when it may be again."""

    def __post_init__(self) -> None:
        """Nothing is known yet."""
        self.rhythm = JobRhythm(self.tempo)

    # ---- progress

    def begin(self, now_s: float) -> None:
        """Training starts, or starts again."""
        self.rhythm.begin(now_s)
        self._active.clear()
        self.doubt = None
        self.close()

    def progress(self, place: NodeRank, progress: Progress | None, now_s: float) -> None:
        """What a node says of the newest step of its ranks."""
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
        """When silence becomes a hang; None if none can be."""
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
        """When the ranks are asked next, be it early."""
        due_s, rhythm = self.due_s, self.rhythm.rhythm
        step, times = self._alarm
        told = self.doubt is not None and self.doubt.since_s == rhythm.progress_s
        if due_s is None or rhythm.progress_s is None or told or (times and step >= rhythm.step):
            return due_s
        since_s, next_s = self._glanced
        early_s = rhythm.progress_s + rhythm.early_limit_s
        return min(due_s, max(early_s, next_s) if since_s == rhythm.progress_s else early_s)

    def question(self, now_s: float) -> Hang | None:
        """What the ranks are to be asked about now."""
        ask_s = self.ask_s
        if ask_s is None or now_s <= ask_s:
            return None
        due_s = self.due_s
        hang = self.rhythm.hang(now_s) if due_s is not None and now_s > due_s else None
        return hang or self.rhythm.rhythm.glance(now_s)

    def glanced(self, now_s: float) -> None:
        """Nothing is proven, and what the job has shown explains it so far."""
        if self.hang is not None:
            self._glanced = (self.hang.since_s, now_s + max(ASK_AGAIN_S, _RARER * self.hang.silent_s))

    # ---- evidence

    def ask(self, probe: int, now_s: float, hang: Hang | None) -> None:
        """The agents are asked: each answers this number once."""
        self.asked = self.asked + 1 if self.asked_s is not None else 1
        self.probe, self.asked_s, self.hang = probe, now_s, hang
        self.answered.clear()

    def hear(self, agent_id: str, probe: int, evidence: Mapping[JobRank, Evidence], now_s: float) -> None:
        """An agent has reported, asked or not."""
        if probe == self.probe:
            self.answered.add(agent_id)
        for rank, known in evidence.items():
            before = self._evidence.get(rank)
            if before is None or before[0].end.ending is None or known.end.ending is not None:
                self._evidence[rank] = (known, now_s)

    def evidence(self, now_s: float) -> dict[JobRank, Evidence]:
        """What is known by now."""
        return {rank: _aged(known, now_s - heard_s) for rank, (known, heard_s) in self._evidence.items()}

    def diagnosis(self, members: Collection[JobRank], now_s: float) -> Diagnosis | None:
        """What the evidence comes to; None without any."""
        known = self.evidence(now_s)
        return diagnose(known, members, self.hang) if known or self.hang is not None else None

    def got_on(self) -> bool:
        """A rank has committed a step since the one that was taken for the last."""
        hang = self.hang
        return hang is not None and max(self.rhythm.rhythm.step, self.newest_step()) > hang.step

    def newest_step(self) -> int:
        """The newest step that anybody has reported; -1 without any."""
        steps = (known.position.step for known, _ in self._evidence.values())
        return max((step for step in steps if step is not None), default=-1)

    def excuse(self, diagnosis: Diagnosis | None) -> tuple[NodeRank, Activity] | None:
        """The phase that explains the silence, and the node that is in it; None if none does."""
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
        """How long after it was told whoever may be at work is waited for."""
        return max(self.tempo.unproven_s, self.tempo.unproven_gaps * self.rhythm.rhythm.longest_s)

    def patient(self, now_s: float) -> bool:
        """Whether whoever may be at work is still waited for."""
        hang, doubt = self.hang, self.doubt
        if hang is None:
            return False
        known = doubt is not None and doubt.since_s == hang.since_s
        return now_s < (doubt.until_s if doubt is not None and known else now_s + self.unproven_s)

    def wait(self, fault: int, now_s: float) -> None:
        """The suspicion is not proven: it is asked about again, until `unproven_s` is over."""
        hang, doubt = self.hang, self.doubt
        if hang is None:
            return
        if doubt is None or doubt.since_s != hang.since_s:
            doubt = self.doubt = Doubt(hang.since_s, hang.step, fault, until_s=now_s + self.unproven_s)
        doubt.next_s = min(now_s + max(ASK_AGAIN_S, _RARER * hang.silent_s), max(doubt.until_s, now_s))

    def next_alarm(self) -> int:
        """How many alarms there are at this step, with one more."""
        step, times = self._alarm
        return times + 1 if self.hang is not None and step >= self.hang.step else 1

    def alarm(self) -> None:
        """The suspicion was well founded, as far as can be said."""
        if self.hang is not None:
            self._alarm = (self.hang.step, self.next_alarm())

    def close(self) -> None:
        """Nothing is the matter, or not any more: forget what was reported."""
        self.hang, self.asked_s = None, None
        self.answered.clear()
        self._evidence.clear()


def _may_be_silence(diagnosis: Diagnosis) -> bool:
    return diagnosis.kind in _SILENCE and not (diagnosis.proven and diagnosis.kind in _ASLEEP)


def _aged(known: Evidence, more_s: float) -> Evidence:
    """The same evidence some time later. Only the age of an end is compared with those of others."""
    ending = known.end.ending
    if ending is None or ending.age_s is None or more_s <= 0:
        return known
    return replace(known, end=replace(known.end, ending=replace(ending, age_s=ending.age_s + more_s)))
