"""Intervals of medians and of their ratios."""

import random

from benchmarks.intervals import ratio_interval


def noisy(middle: float, count: int, seed: int) -> list[float]:
    chance = random.Random(seed)
    return [chance.gauss(middle, 0.15 * middle) for _ in range(count)]


def test_a_ratio_of_noisy_equals_may_be_one() -> None:
    lower, upper = ratio_interval(noisy(0.08, 8, 1), noisy(0.08, 8, 2))
    assert lower < 1 < upper


def test_a_ratio_of_two_stands_out_of_the_noise() -> None:
    lower, upper = ratio_interval(noisy(0.16, 8, 1), noisy(0.08, 8, 2))
    assert 1.2 < lower < 2 < upper


def test_more_values_tell_more() -> None:
    few = ratio_interval(noisy(0.08, 8, 1), noisy(0.08, 8, 2))
    many = ratio_interval(noisy(0.08, 200, 1), noisy(0.08, 200, 2))
    assert many[1] - many[0] < few[1] - few[0]
