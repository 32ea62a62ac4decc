"""Detection of hangs: a job is silent for longer than its own rhythm explains. Only its steps teach that rhythm.

A job makes progress when a rank commits a step that no rank had committed before, or when the script announces a phase.
These limits are guaranteed. `usual` is the median of the last 128 steps, and the numbers are the defaults of `Tempo`:

| state of the job | it is a hang after, counted from the last progress |
| --- | --- |
| before its first step, and after a recovery before the next one | `first_s` |
| fewer than 20 steps are known | `first_s` |
| fewer than 200 steps are known | 40 x usual, at least 2 s |
| after that | 3 x usual, at least 2 s |
| ... and slower steps came now and then | 2 x the longest of them plus 3 x usual, if that is more |
| ... after a step where a regular gap is due (`core/diagnosis/gaps.py`) | 2 x the longest seen there, if that is more |
| in an announced phase, seen before | 3 x its longest, at least 2 s |
| in an announced phase for the first time | `phase_s` |

A hang is reported after these times. The ranks are asked for proof (`proof.py`) without regard to gaps and phases:
after the limit that steps alone give, and after `early_first_s` where the table has `first_s`.

Rules:

1. A gap of more than 3 x usual is remembered: a gap that has been seen once is no hang the next time. So an occasional
   slow step has a price: true hangs are diagnosed later, unless the step is much shorter than the limit without it.
2. The first long gap of its sort cannot be foreseen. In the first 200 steps, a gap of up to 40 usual steps (or 2 s)
   raises no alarm. After those, the first one of more than 3 usual steps and 2 s does, unless it is announced.
3. Work that was interrupted because it took too long counts as such a gap: repeated, it may take as long, and longer.
4. A hang is the job's: no rank makes progress. A single node that stays behind is named by `JobRhythm.lagging`.
5. Memory is constant for the job, with one number pair for each node. A step costs one search in 128 numbers.
"""

from bisect import bisect_left, insort
from collections import Counter, deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from taskd.core.diagnosis.gaps import Gaps
from taskd.core.policy import Tempo
from taskd.wire.kinds import NodeRank

WINDOW: Final = 128
_PHASES_KEPT: Final = 8


class Activity(Enum):
    """Activity of the script. The script announces all but training."""

    TRAINING = "training"
    EVALUATION = "evaluation"
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True)
class Hang:
    """A silence of the job that is longer than its rhythm explains."""

    since_s: float
    silent_s: float
    limit_s: float
    usual_s: float | None
    step: int
    reason: str
    early: bool = False
    """True if the job's gaps may explain it: it counts only if it is proven."""


@dataclass(slots=True)
class _Usual:
    """Median length of the newest steps."""

    _newest: deque[float] = field(default_factory=deque)
    _sorted: list[float] = field(default_factory=list)

    def add(self, length_s: float) -> None:
        if len(self._newest) == WINDOW:
            del self._sorted[bisect_left(self._sorted, self._newest.popleft())]
        self._newest.append(length_s)
        insort(self._sorted, length_s)

    @property
    def length_s(self) -> float | None:
        return self._sorted[len(self._sorted) // 2] if self._sorted else None


@dataclass(slots=True)
class Rhythm:
    """The rhythm of one sequence of steps. Times are seconds of one clock and never go back."""

    tempo: Tempo = field(default_factory=Tempo)
    step: int = -1
    """Newest committed step."""
    progress_s: float | None = None
    """Time of the last progress; None before `begin`."""
    activity: Activity = Activity.TRAINING
    _usual: _Usual = field(default_factory=_Usual)
    _gaps: Gaps = field(default_factory=Gaps)
    _known: int = 0
    _stepped_s: float | None = None
    """Time at which `step` was committed; None if the time that follows is not to be measured."""
    _away_s: float = 0.0
    """Announced part of the time since then, in seconds."""
    _phases: dict[Activity, deque[float]] = field(default_factory=dict)
    longest_s: float = 0.0
    """Longest time, in seconds, that the job has taken for anything but its first steps."""

    @property
    def usual_s(self) -> float | None:
        """Usual length of a step; None before two were committed."""
        return self._usual.length_s

    def begin(self, at_s: float) -> None:
        """Start training, or start it again after a recovery: the next step may take as long as a first one."""
        self.progress_s, self._stepped_s, self._away_s, self.activity = at_s, None, 0.0, Activity.TRAINING

    def commit(self, step: int, at_s: float) -> None:
        """Record that step `step` is committed. Steps in between may be left out: they count as equally long."""
        if self._stepped_s is not None and step > self.step:
            self._learn(step - self.step, at_s - self._stepped_s - self._away_s)
        self.step, self.progress_s, self._stepped_s, self._away_s = step, at_s, at_s, 0.0

    def _learn(self, steps: int, elapsed_s: float) -> None:
        usual_s = self.usual_s
        self._known += steps
        if usual_s is not None and self._known > self.tempo.few_steps:
            gap_s = elapsed_s - (steps - 1) * usual_s
            self.longest_s = max(self.longest_s, gap_s)
            if gap_s > self.tempo.factor * usual_s:
                self._gaps.add(self.step, gap_s)
        self._usual.add(elapsed_s / steps)

    def announce(self, activity: Activity, at_s: float) -> None:
        """Record that the script has begun this activity. TRAINING ends the announced one."""
        if activity is self.activity or self.progress_s is None:
            return
        if self.activity is not Activity.TRAINING:
            lasted_s = at_s - self.progress_s
            self._phases.setdefault(self.activity, deque(maxlen=_PHASES_KEPT)).append(lasted_s)
            self.longest_s = max(self.longest_s, lasted_s)
            self._away_s += lasted_s
        self.activity, self.progress_s = activity, at_s

    def interrupt(self, at_s: float) -> None:
        """Record that taskd ends the present activity. It may have been work, so its length is known from now on."""
        if self.progress_s is None:
            return
        lasted_s = at_s - self.progress_s
        self.longest_s = max(self.longest_s, lasted_s)
        if self.activity is Activity.TRAINING:
            self._gaps.add(self.step, lasted_s)
        else:
            self._phases.setdefault(self.activity, deque(maxlen=_PHASES_KEPT)).append(lasted_s)

    @property
    def limit_s(self) -> float:
        """Longest time without progress that is no hang, counted from the last progress."""
        return self._limit()[0]

    @property
    def deadline_s(self) -> float | None:
        """Time at which silence becomes a hang if no progress is reported until then; None before `begin`."""
        return None if self.progress_s is None else self.progress_s + self.limit_s

    def hang(self, now_s: float) -> Hang | None:
        """Return the silence so far as a hang; None if it is none."""
        if self.progress_s is None or now_s - self.progress_s <= self.limit_s:
            return None
        limit_s, why = self._limit()
        silent_s = now_s - self.progress_s
        reason = (
            f"no progress for {silent_s:.1f} s after step {self.step}, where at most {limit_s:.1f} s are usual: {why}"
        )
        return Hang(self.progress_s, silent_s, limit_s, self.usual_s, self.step, reason)

    @property
    def early_limit_s(self) -> float:
        """As `limit_s`, without regard to the gaps and phases of the job: a proven hang need not wait for those."""
        usual_s = self.usual_s
        if self._stepped_s is None or usual_s is None or self._known < self.tempo.few_steps:
            return min(self.limit_s, max(self.tempo.floor_s, self.tempo.early_first_s))
        factor = self.tempo.factor if self._known >= self.tempo.settled_steps else self.tempo.early_factor
        return max(self.tempo.floor_s, factor * usual_s)

    def glance(self, now_s: float) -> Hang | None:
        """Return the silence so far if it is longer than steps are; else None."""
        if self.progress_s is None or now_s - self.progress_s <= self.early_limit_s:
            return None
        silent_s = now_s - self.progress_s
        reason = f"no progress for {silent_s:.1f} s after step {self.step}"
        return Hang(self.progress_s, silent_s, self.early_limit_s, self.usual_s, self.step, reason, early=True)

    def _limit(self) -> tuple[float, str]:
        tempo, usual_s = self.tempo, self.usual_s
        if self.activity is not Activity.TRAINING:
            return self._phase_limit()
        if self._stepped_s is None or usual_s is None:
            return tempo.first_s, "it is the first step"
        if self._known < tempo.few_steps:
            return tempo.first_s, f"only {self._known} steps are known"
        factor = tempo.factor if self._known >= tempo.settled_steps else tempo.early_factor
        due_s, slow_s = self._gaps.expected_s(self.step), self._gaps.irregular_s(self.step)
        return max(
            (factor * usual_s, f"a step takes {usual_s:.3g} s"),
            (tempo.floor_s, f"a step takes {usual_s:.3g} s"),
            (tempo.slack * due_s, f"at this step it has taken {due_s:.3g} s before"),
            (self._twice_s(slow_s), f"now and then a step has taken {slow_s:.3g} s"),
        )

    def _twice_s(self, slow_s: float) -> float:
        """Return the limit for an irregular gap: it may come twice in one step, or with a checkpoint of that length."""
        return self.tempo.slack * slow_s + self.tempo.factor * (self.usual_s or 0.0) if slow_s else 0.0

    def _phase_limit(self) -> tuple[float, str]:
        seen = self._phases.get(self.activity)
        if not seen:
            return self.tempo.phase_s, f"it is the first {self.activity.value}"
        longest_s = max(seen)
        limit_s = max(self.tempo.floor_s, self.tempo.factor * longest_s)
        return limit_s, f"in the {self.activity.value}, which has taken {longest_s:.3g} s before"


@dataclass(slots=True)
class JobRhythm:
    """The rhythm of a job of many nodes. The node with the first rank to commit a step gives the beat."""

    tempo: Tempo = field(default_factory=Tempo)
    rhythm: Rhythm = field(init=False)
    _places: dict[NodeRank, tuple[int, float]] = field(default_factory=dict)
    _away: dict[NodeRank, Activity] = field(default_factory=dict)
    _counts: Counter[Activity] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.rhythm = Rhythm(self.tempo)

    def begin(self, at_s: float) -> None:
        """Start all ranks, or start them again after a recovery. Only the nodes that report from now on count."""
        self.rhythm.begin(at_s)
        self.rhythm.step = -1
        self._places.clear()
        self._away.clear()
        self._counts.clear()

    def commit(self, place: NodeRank, step: int, at_s: float) -> None:
        """Record that a rank of this node has committed a step."""
        before = self._places.get(place)
        if before is None or step != before[0]:
            self._places[place] = (step, at_s)
        if step > self.rhythm.step:
            self.rhythm.commit(step, at_s)

    def announce(self, place: NodeRank, activity: Activity, at_s: float) -> None:
        """Record that a rank of this node has announced this activity. The job is in a phase as long as one node is."""
        before = self._away.pop(place, None)
        if before is not None:
            self._counts[before] -= 1
        if activity is not Activity.TRAINING:
            self._away[place] = activity
            self._counts[activity] += 1
        if place in self._places:
            self._places[place] = (self._places[place][0], at_s)
        phases = (Activity.CHECKPOINT, Activity.EVALUATION)
        self.rhythm.announce(next((one for one in phases if self._counts[one] > 0), Activity.TRAINING), at_s)

    @property
    def deadline_s(self) -> float | None:
        """Time at which silence becomes a hang."""
        return self.rhythm.deadline_s

    def hang(self, now_s: float) -> Hang | None:
        """Return the hang of the job; None while it makes progress."""
        return self.rhythm.hang(now_s)

    def lagging(self, now_s: float) -> list[NodeRank]:
        """Return nodes that are behind and have been silent for longer than the job may be, while others went on."""
        limit_s = self.rhythm.limit_s
        return sorted(
            place
            for place, (step, at_s) in self._places.items()
            if step < self.rhythm.step and now_s - at_s > limit_s and place not in self._away
        )
