"""Confidence intervals of medians, and of ratios of medians."""

import math
import random
import statistics
from typing import Final

_RESAMPLES: Final = 2000


def interval(values: list[float]) -> tuple[float, float]:
    """Return the 95 % interval of the true median: two of the values, by the binomial distribution of their ranks."""
    ordered = sorted(values)
    middle, away = len(ordered) / 2, 0.98 * math.sqrt(len(ordered))
    return ordered[max(0, math.floor(middle - away))], ordered[min(len(ordered) - 1, math.ceil(middle + away))]


def ratio_interval(above: list[float], below: list[float]) -> tuple[float, float]:
    """Return the 95 % interval of the ratio of two medians, by the percentile bootstrap."""
    chance = random.Random(0)

    def median(values: list[float]) -> float:
        return statistics.median(chance.choices(values, k=len(values)))

    ratios = sorted(median(above) / median(below) for _ in range(_RESAMPLES))
    return ratios[round(0.025 * _RESAMPLES)], ratios[round(0.975 * _RESAMPLES)]
