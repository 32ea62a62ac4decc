"""How sure a median is."""

import math


def interval(values: list[float]) -> tuple[float, float]:
    """In which their true median lies with 95 %: two of the values, by the binomial distribution of their ranks."""
    ordered = sorted(values)
    middle, away = len(ordered) / 2, 0.98 * math.sqrt(len(ordered))
    return ordered[max(0, math.floor(middle - away))], ordered[min(len(ordered) - 1, math.ceil(middle + away))]
