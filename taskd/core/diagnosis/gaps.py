"""The long gaps between the steps of a job: which come at every so many steps, and how long the others were.

Rules:

1. A gap is named by the step after which it came. Nobody has to say what it was.
2. Gaps whose lengths differ by less than a factor of two are of one kind. Four of a kind at equal distances are a
   regular gap (an evaluation, a checkpoint): it is expected at each multiple of that distance, and nowhere else. If
   twice as many others of that kind lie between them, it is chance; and if it stays away as often, it has been.
3. All others are irregular (now and then a slow step): one may come after any step.
4. What is remembered is bounded: 16 kinds of each sort, 16 gaps of a kind and its longest. An irregular kind that has
   not been seen for 10,000 steps is forgotten; a regular one stays while it comes: it matters at its own steps alone.
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
    """Gaps of about one length; with a period, they come at each multiple of it."""

    gaps: deque[_Gap] = field(default_factory=lambda: deque(maxlen=GAPS_OF_A_KIND))
    period: int = 0
    peak: _Gap = _NONE
    """The longest, also when newer ones have taken its place among the gaps."""

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
        """Whether it has not come as often in a row as it had come before it was held to be regular."""
        return (after - self.newest) // self.period > _IN_A_ROW

    def alike(self, length_s: float) -> bool:
        return self.longest_s / _ALIKE < length_s < min(gap.length_s for gap in self.gaps) * _ALIKE

    def regular_part(self) -> "_Kind | None":
        """The newest gap and three before it at equal distances, taken out of this kind; None without such."""
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
    """What one job's steps have taught about its long gaps."""

    _regular: list[_Kind] = field(default_factory=list)
    _irregular: list[_Kind] = field(default_factory=list)

    def add(self, after: int, length_s: float) -> None:
        """After step `after`, the next one was a gap of `length_s` away."""
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
        """The longest regular gap that is due after this step; 0.0 if none is."""
        return max((kind.longest_s for kind in self._regular if kind.due(after)), default=0.0)

    def irregular_s(self, after: int) -> float:
        """The longest irregular gap that is remembered at this step; 0.0 if there is none."""
        near = (kind for kind in self._irregular if abs(after - kind.newest) <= REMEMBERED_STEPS)
        return max((kind.longest_s for kind in near), default=0.0)
