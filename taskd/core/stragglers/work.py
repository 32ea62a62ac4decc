"""Dependence of a rank's time on its amount of work: learned from all ranks, step by step.

Rules:

1. Within one step, ranks have different work. The law is the relation of their times to it. Steps are not compared
   with each other, so an effect on a whole step is not taken for work.
2. The law is a curve in logarithms: time ~ work^p, where p may change with the work. It begins as `time ~ work`.
3. A slow rank does not bend the curve much: a value that lies far from it counts less.
"""

import math
from collections.abc import Sequence
from typing import Final

from taskd.core.stragglers.compare import median

_FORGET_STEPS: Final = 512
_PRIOR: Final = 0.5
"""Weight of the first assumption: as much as differences of work whose squares sum up to this."""
_FAR: Final = 4.0
"""Largest deviation that counts, in multiples of the median that the curve leaves unexplained in a step."""


class WorkLaw:
    """The curve from work to time, and the part of a rank's time that it explains."""

    def __init__(self) -> None:
        self._centre = math.nan
        self._aa, self._ab, self._bb = _PRIOR, 0.0, _PRIOR
        self._ay, self._by = _PRIOR, 0.0
        self._slope, self._bend = 1.0, 0.0

    def effects(self, works: Sequence[float]) -> list[float]:
        """Return the effect of each rank's work on the logarithm of its time, compared with a usual amount of work."""
        logs = [math.log(work) for work in works]
        if self._centre != self._centre:
            self._centre = sum(logs) / len(logs)
        return [(self._slope + self._bend * (x - self._centre)) * (x - self._centre) for x in logs]

    def learn(self, works: Sequence[float], times: Sequence[float]) -> None:
        """Learn from one step: the work of each rank and the logarithm of its time."""
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
        # the prior decays with the rest, and that part is added again
        aa, bb, ay = aa + _PRIOR / _FORGET_STEPS, bb + _PRIOR / _FORGET_STEPS, ay + _PRIOR / _FORGET_STEPS
        for y, u, v in zip(rest, first, second, strict=True):
            a, b = u - mean_a, v - mean_b
            # the time that the curve predicts, plus the unexplained rest within its bounds
            explained = self._slope * a + self._bend * b + max(-far, min(far, y - middle))
            aa, ab, bb = aa + a * a, ab + a * b, bb + b * b
            ay, by = ay + a * explained, by + b * explained
        self._aa, self._ab, self._bb, self._ay, self._by = aa, ab, bb, ay, by
        inverse = aa * bb - ab * ab
        self._slope, self._bend = (bb * ay - ab * by) / inverse, (aa * by - ab * ay) / inverse
