"""How a rank's time depends on how much it was given to do: learned from all ranks, step by step.

Rules:

1. Within one step the ranks have different work; how their times differ with it is the law. Steps are not compared
   with each other, so that nothing that happens to a step is taken for work.
2. The law is a curve in logarithms: time ~ work^p, where p may change with the work. It begins as `time ~ work`.
3. A rank that is slow does not bend the curve much: what lies far from it counts less.
"""

import math
from collections.abc import Sequence
from typing import Final

from taskd.core.stragglers.compare import median

_FORGET_STEPS: Final = 512
_PRIOR: Final = 0.5
"""How much the first assumption weighs: as much as differences of work whose squares sum up to this."""
_FAR: Final = 4.0
"""A rank counts no further than so many times the middle of what the curve leaves unexplained in a step."""


class WorkLaw:
    """The curve, and what it takes off a rank's time."""

    def __init__(self) -> None:
        self._centre = math.nan
        self._aa, self._ab, self._bb = _PRIOR, 0.0, _PRIOR
        self._ay, self._by = _PRIOR, 0.0
        self._slope, self._bend = 1.0, 0.0

    def effects(self, works: Sequence[float]) -> list[float]:
        """What each rank's work adds to the logarithm of its time, beside that of a usual amount of work."""
        logs = [math.log(work) for work in works]
        if self._centre != self._centre:
            self._centre = sum(logs) / len(logs)
        return [(self._slope + self._bend * (x - self._centre)) * (x - self._centre) for x in logs]

    def learn(self, works: Sequence[float], times: Sequence[float]) -> None:
        """One step: the work of each rank and the logarithm of its time."""
        effects = self.effects(works)
        count = len(works)
        first = [math.log(work) - self._centre for work in works]
        second = [u * u for u in first]
        rest = [y - effect for y, effect in zip(times, effects, strict=True)]
        middle = median(rest)
        far = _FAR * median([abs(left - middle) for left in rest])
        mean_a, mean_b = sum(first) / count, sum(second) / count
        keep = 1 - 1 / _FORGET_STEPS
        aa, ab, bb, ay, by = (keep * part for part in (self._aa, self._ab, self._bb, self._ay, self._by))
        # the prior is forgotten with the rest, and put back
        aa, bb, ay = aa + _PRIOR / _FORGET_STEPS, bb + _PRIOR / _FORGET_STEPS, ay + _PRIOR / _FORGET_STEPS
        for y, u, v in zip(rest, first, second, strict=True):
            a, b = u - mean_a, v - mean_b
            # as if the step's time were what the curve says and the part of the rest that is believed
            explained = self._slope * a + self._bend * b + max(-far, min(far, y - middle))
            aa, ab, bb = aa + a * a, ab + a * b, bb + b * b
            ay, by = ay + a * explained, by + b * explained
        self._aa, self._ab, self._bb, self._ay, self._by = aa, ab, bb, ay, by
        inverse = aa * bb - ab * ab
        self._slope, self._bend = (bb * ay - ab * by) / inverse, (aa * by - ab * ay) / inverse
