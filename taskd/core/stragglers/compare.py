"""Sequential test for units that take longer than they should, step by step, on logarithms of times.

Rules:

1. A value is the logarithm of a unit's time for one step. Only its deviation from the median of the others in the same
   step counts, so an effect of the step on everybody cancels out.
2. Two tests run for each unit, both sums of log likelihood ratios that never fall below 0 (CUSUM). `changed` tests
   whether the unit needs 10 % more than its own history predicts. `standing` tests whether it needs 10 % more than the
   others. There, an excess of up to `EVEN` counts as none: ranks are never quite equal, and one of them writes logs.
3. The noise is measured, from differences of neighbours and of means of `BLOCK` steps, and the larger counts: noise
   that lasts for some steps is noise too. So a unit whose times vary much is judged later, never sooner.
4. An alarm is at `threshold`: a healthy job reaches it less than once in `STEPS_PER_ALARM` steps, over all units and
   tests. No step adds more than a quarter of it or counts for more than 1.5 deviations. An alarm takes `LEAST_STEPS`.
5. A unit's history holds the steps before the present rise of its sum. While it is short for its noise, it is doubted.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

SLOW: Final = math.log(1.10)
"""Slowness that is to be found within 20 steps, as a logarithm."""
EVEN: Final = 0.05
"""Excess over the others, as a logarithm, that does not make a unit slow if it has always had it."""
STEPS_PER_ALARM: Final = 1e4
STANDING_MORE: Final = 4.0
"""Further height that `standing` must reach: it has no healthy time of the unit as a reference, and no hurry."""
LEARN: Final = 12
"""Steps from which the noise is first known, if there are enough rows."""
LEARN_ROWS: Final = 6
"""Rows from which the noise is first known, if there are enough steps."""
BLOCK: Final = 8
CAP_SHARE: Final = 1 / 4
LEAST_STEPS: Final = 6
LEAST_NOISE: Final = 0.02
_HUBER: Final = 1.5
_TESTS: Final = 2
_MEAN_ABS: Final = 2 / math.sqrt(math.pi)
"""Mean of |a - b| for two normal numbers with a deviation of 1."""
_MEDIAN_ABS: Final = 0.6745 * math.sqrt(2)
_NEAR_STEPS: Final = 64
_FAR_BLOCKS: Final = 16
_HISTORY_STEPS: Final = 2048
_MEAN_STEPS: Final = 256
_DOUBT: Final = 2.5
"""Standard errors that are added to a history, as far as they exceed an eighth of the slowness to detect."""
_HISTORY_LEAST: Final = 16
"""Steps before which a history does not count at all."""
_COARSE: Final = 0.4
"""Slowness to detect where the noise is great, in deviations: 10 % would take thousands of steps."""
_SHRINK_STEPS: Final = 64


def threshold(units: int) -> float:
    """Return the limit of an alarm: the log likelihood ratio that a healthy job of so many units rarely reaches.

    It does so once in `STEPS_PER_ALARM` steps at most.
    """
    return math.log(_TESTS * max(1, units) * STEPS_PER_ALARM)


def median(values: Sequence[float]) -> float:
    """Return the median of at least one value."""
    known = sorted(values)
    middle = len(known) // 2
    return known[middle] if len(known) % 2 else (known[middle - 1] + known[middle]) / 2


def against_others(values: Sequence[float]) -> list[float]:
    """Return the excess of each value over the median of all the others."""
    count = len(values)
    if count < 2:
        return [0.0] * count
    known = sorted(values)
    low = (count - 2) // 2  # the others' middle if the unit itself is above it
    if count % 2 == 0:
        edge, above, below = known[low], known[low], known[low + 1]
        return [value - (below if value <= edge else above) for value in values]
    first, middle, last = known[low], known[low + 1], known[low + 2]
    return [
        value - ((middle + last) if value < middle else (first + middle) if value > middle else (first + last)) / 2
        for value in values
    ]


class Unit:
    """One rank, one node, or the network: its mean, its noise, and the evidence against it."""

    __slots__ = (
        "_block", "_block_before", "_far", "_far_seen", "_history_seen", "_last", "_near", "_pending", "_pending_seen",
        "changed", "changed_steps", "history", "mean", "seen", "sigma", "standing", "standing_steps", "told",
    )  # fmt: skip

    def __init__(self, learned: Sequence[float], sigma: float) -> None:
        self.mean = self.history = median(learned)
        self.seen = self._history_seen = len(learned)
        self._last = learned[-1]
        self.sigma = sigma
        self._near = sigma * _MEAN_ABS
        self._far, self._far_seen = 0.0, 0
        self._block, self._block_before = 0.0, math.nan
        self._pending, self._pending_seen = 0.0, 0
        self.changed = self.standing = 0.0
        self.changed_steps = self.standing_steps = 0
        self.told = False

    def note(self, value: float, reference: float, limit: float) -> None:
        """Add one step's deviation."""
        sigma = self.sigma
        reach = _HUBER * sigma + SLOW / 2
        kept = self.mean + _within(value - self.mean, reach)
        self._measure(value, kept)
        self.standing, self.standing_steps = _sum(
            self.standing, self.standing_steps, value - reference, (EVEN, SLOW), sigma, limit
        )
        if self._history_seen < _HISTORY_LEAST:
            self._remember(kept, 1)
            return
        slow = max(SLOW, _COARSE * sigma)
        doubt = max(0.0, _DOUBT * sigma / math.sqrt(self._history_seen) - slow / 8)
        usual = reference + _within(self.history - reference, EVEN) + doubt
        self.changed, self.changed_steps = _sum(
            self.changed, self.changed_steps, value - usual, (0.0, slow), sigma, limit
        )
        self._pending += self.history + _within(value - self.history, reach)
        self._pending_seen += 1
        if not self.changed:
            self._remember(self._pending, self._pending_seen)
            self._pending, self._pending_seen = 0.0, 0

    def _measure(self, value: float, kept: float) -> None:
        self.seen += 1
        self.mean += (kept - self.mean) / min(self.seen, _MEAN_STEPS)
        self._near += (min(abs(value - self._last), 4.5 * self.sigma) - self._near) / _NEAR_STEPS
        self._last = value
        self._block += kept

    def _remember(self, total: float, steps: int) -> None:
        self._history_seen = min(self._history_seen + steps, _HISTORY_STEPS)
        self.history += (total - steps * self.history) / max(self._history_seen, steps)

    def end_block(self) -> None:
        """End a block: `BLOCK` steps have passed since the last call."""
        mean, before = self._block / BLOCK, self._block_before
        self._block, self._block_before = 0.0, mean
        if not math.isnan(before):  # it is not the first
            self._far_seen = min(self._far_seen + 1, _FAR_BLOCKS)
            self._far += (abs(mean - before) - self._far) / self._far_seen

    def noise(self) -> tuple[float, float]:
        """Return the noise of its steps, as estimated from neighbours and from blocks; 0 without two blocks."""
        return self._near / _MEAN_ABS, self._far * math.sqrt(BLOCK) / _MEAN_ABS

    @property
    def score(self) -> float:
        """The stronger sum against the unit, `standing` without its further height."""
        return max(self.changed, self.standing - STANDING_MORE)

    @property
    def stands(self) -> bool:
        """True if `standing` is the stronger: the unit has probably always been slow, and has not become so."""
        return self.standing - STANDING_MORE > self.changed

    @property
    def lasted(self) -> int:
        """Steps over which the stronger sum has come together."""
        return self.standing_steps if self.stands else self.changed_steps


def _within(value: float, reach: float) -> float:
    return reach if value > reach else max(value, -reach)


def _sum(
    total: float, steps: int, value: float, between: tuple[float, float], sigma: float, limit: float
) -> tuple[float, int]:
    """Add one step to a sum of log likelihood ratios. Return it, with the number of steps since it was 0."""
    even, slow = between
    gap = slow - even
    ratio = gap / (sigma * sigma) * _within(value - (even + slow) / 2, _HUBER * sigma + gap / 2)
    total += _within(ratio, CAP_SHARE * limit)
    return (min(total, 1.5 * limit), steps + 1) if total > 0 else (0.0, 0)


class Comparison:
    """Units of one kind. `alone`: they are compared only with their own history, as the network is."""

    def __init__(self, units: int, family: int, *, alone: bool = False) -> None:
        self._count = units
        self._alone = alone
        self.limit = threshold(family)
        self.units: list[Unit] = []
        self._learning: list[list[float]] = []
        self._reference = 0.0
        self._rows = 0
        self._steps = 0

    def note(self, values: Sequence[float], steps: int = 1) -> list[int]:
        """Add a row of all units: one step, or the mean of some.

        Return the indices of units whose evidence has just become strong enough.
        """
        if not self._count:
            return []
        deviations = list(values) if self._alone else against_others(values)
        if not self.units:
            self._learning.append(deviations)
            self._steps += steps
            if self._steps >= LEARN and len(self._learning) >= LEARN_ROWS:
                self._begin()
            return []
        self._rows += 1
        reference, limit = self._reference, self.limit
        for unit, deviation in zip(self.units, deviations, strict=True):
            unit.note(deviation, unit.history if self._alone else reference, limit)
        if self._rows % BLOCK == 0:
            self._settle()
        found = []
        for index, unit in enumerate(self.units):
            if unit.told:
                unit.told = unit.score > 0
            elif (unit.changed >= limit or unit.standing >= limit + STANDING_MORE) and unit.lasted >= LEAST_STEPS:
                found.append(index)
        return found

    def _begin(self) -> None:
        series = [*zip(*self._learning, strict=True)]
        jumps = [abs(b - a) for one in series for a, b in pairwise(one)]
        sigma = max(LEAST_NOISE, median(jumps) / _MEDIAN_ABS)
        self.units = [Unit(one, sigma) for one in series]
        self._learning = []
        self._settle_reference()

    def _settle(self) -> None:
        for unit in self.units:
            unit.end_block()
        noises = [unit.noise() for unit in self.units]
        near = sum(near for near, _ in noises) / self._count
        far = sum(far for _, far in noises) / self._count
        unsure = 1 + 1 / math.sqrt(self._count * self._rows / BLOCK)
        pooled = max(LEAST_NOISE, unsure * max(near, far))
        for unit, own in zip(self.units, noises, strict=True):
            share = unit.seen / (unit.seen + _SHRINK_STEPS)
            shrunk = math.sqrt(share * max(own) ** 2 + (1 - share) * pooled**2)
            unit.sigma = max(pooled, shrunk)
        self._settle_reference()

    def _settle_reference(self) -> None:
        self._reference = 0.0 if self._alone else median([unit.mean for unit in self.units])


def steps_needed(compared: Comparison, sigmas: float = 2.33) -> float:
    """Return the steps after which `changed` finds a unit of median noise that begins to need 10 % more.

    Its sum rises by d = SLOW^2 / 2 sigma^2 a step, and after n steps scatters by sqrt(2 d n). In 99 of 100 cases, the
    unit is found when d n - 2.33 sqrt(2 d n) is the limit.
    """
    sigma = median([unit.sigma for unit in compared.units])
    rise = SLOW * SLOW / (2 * sigma * sigma)
    scatter = sigmas * math.sqrt(2 * rise)
    root = (scatter + math.sqrt(scatter * scatter + 4 * rise * compared.limit)) / (2 * rise)
    return max(root * root, LEAST_STEPS)
