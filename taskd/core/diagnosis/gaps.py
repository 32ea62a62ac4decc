"""Long gaps between the steps of a job: those that recur at a fixed distance, and the lengths of the others.

Rules:

1. A gap is identified by the step after which it came. Its cause need not be announced.
2. Gaps whose lengths differ by less than a factor of two are of one kind. Four of a kind at equal distances are a
   regular gap (an evaluation, a checkpoint). It is expected at each multiple of that distance, and nowhere else. If
   twice as many others of that kind lie between the four, their distance is chance. A regular gap that stays away four
   times in a row becomes irregular.
3. All others are irregular (an occasional slow step): one may come after any step.
4. Memory is bounded: 16 kinds of each sort, and of a kind 16 gaps and the longest. An irregular kind that has not come
   for 10,000 steps is forgotten. A regular kind stays while it recurs: it matters only at its own steps.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

KINDS: Final = 16
GAPS_OF_A_KIND: Final = 16
REMEMBERED_STEPS: Final = 10_000
_IN_A_ROW: Final = 4
_ALIKE: Final = 2.0


@dataclass(frozen=True, slots=True)
class _Gap:
    after: int
    length_s: float


_NONE: Final = _Gap(-REMEMBERED_STEPS, 0.0)


@dataclass(slots=True)
class _Kind:
    """Gaps of about one length. With a `period`, they come at each multiple of it."""

    gaps: deque[_Gap] = field(default_factory=lambda: deque(maxlen=GAPS_OF_A_KIND))
    period: int = 0
    peak: _Gap = _NONE
    """The longest gap, even after newer ones have taken its place in `gaps`."""

    def add(self, gap: _Gap) -> None:
        self.gaps.append(gap)
        if gap.length_s >= self.peak.length_s or gap.after - self.peak.after > REMEMBERED_STEPS:
            self.peak = max(self.gaps, key=lambda one: one.length_s)

    @property
    def longest_s(self) -> float:
        return self.peak.length_s

    @property
    def newest(self) -> int:
        return self.gaps[-1].after

    def due(self, after: int) -> bool:
        return self.period > 0 and (after - self.newest) % self.period == 0

    def has_stopped(self, after: int) -> bool:
        """Return whether it has now been missing as often in a row as it came in a row before it counted as regular."""
        return (after - self.newest) // self.period > _IN_A_ROW

    def alike(self, length_s: float) -> bool:
        return self.longest_s / _ALIKE < length_s < min(gap.length_s for gap in self.gaps) * _ALIKE

    def regular_part(self) -> "_Kind | None":
        """Remove the newest gap and three before it at equal distances. Return them as a kind; None without such."""
        at = {gap.after: gap for gap in self.gaps}
        for earlier in sorted(at, reverse=True):
            period = self.newest - earlier
            row = [self.newest - period * back for back in range(_IN_A_ROW)]
            between = sum(row[-1] < step < row[0] for step in at) - (_IN_A_ROW - 2)
            if period > 0 and all(step in at for step in row) and between < 2 * _IN_A_ROW:
                found = _Kind(period=period)
                for step in reversed(row):
                    found.add(at[step])
                rest, peak = [gap for gap in self.gaps if gap.after not in row], self.peak
                self.gaps.clear()
                self.peak = _NONE if peak.after in row else peak
                for gap in rest:
                    self.add(gap)
                return found
        return None


@dataclass(slots=True)
class Gaps:
    """Long gaps of one job, learned from its steps."""

    _regular: list[_Kind] = field(default_factory=list)
    _irregular: list[_Kind] = field(default_factory=list)

    def add(self, after: int, length_s: float) -> None:
        """Record a gap: the step after step `after` came `length_s` later."""
        gap = _Gap(after, length_s)
        for old in [kind for kind in self._regular if kind.has_stopped(after)]:
            self._regular.remove(old)
            self._irregular.append(_Kind(old.gaps, peak=old.peak))
        due = [kind for kind in self._regular if kind.due(after)]
        if due:
            min(due, key=lambda kind: abs(kind.longest_s - length_s)).add(gap)
            return
        kind = next((kind for kind in self._irregular if kind.alike(length_s)), None)
        if kind is None:
            kind = _Kind()
            self._irregular.append(kind)
        kind.add(gap)
        regular = kind.regular_part()
        if regular is not None:
            self._regular.append(regular)
        self._irregular = [kind for kind in self._irregular if kind.gaps]
        for kinds in (self._regular, self._irregular):
            if len(kinds) > KINDS:
                kinds.remove(min(kinds, key=lambda kind: kind.newest))

    def expected_s(self, after: int) -> float:
        """Return the longest regular gap that is due after this step, in seconds; 0.0 if none is."""
        return max((kind.longest_s for kind in self._regular if kind.due(after)), default=0.0)

    def irregular_s(self, after: int) -> float:
        """Return the longest irregular gap that is remembered at this step, in seconds; 0.0 if there is none."""
        near = (kind for kind in self._irregular if abs(after - kind.newest) <= REMEMBERED_STEPS)
        return max((kind.longest_s for kind in near), default=0.0)
