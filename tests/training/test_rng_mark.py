"""Mark of the random number generators: it changes whenever one of them has drawn or was set."""

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from taskd.adaptors.training.positions.rng import PackedRng

TURN = 624
"""Words of a twister: after this many numbers, its position is the same again."""
DRAWS: dict[str, Callable[[], object]] = {
    "python": random.random,
    "python, all its words": lambda: [random.getrandbits(32) for _ in range(TURN)],
    "python, a normal number": lambda: random.gauss(0, 1),
    "python is seeded": lambda: random.seed(1),
    "numpy": np.random.rand,
    "numpy, all its words": lambda: [np.random.bytes(4) for _ in range(TURN)],
    "numpy, a normal number": np.random.randn,
    "numpy is seeded": lambda: np.random.seed(1),
    "torch": lambda: torch.rand(()),
    "torch, all its words": lambda: torch.randint(7, (TURN,)),
    "torch, a normal number": lambda: torch.randn(()),
    "torch is seeded": lambda: torch.manual_seed(1),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_it_is_another_one_as_soon_as_a_generator_has_drawn(draw: Callable[[], object]) -> None:
    randomness = PackedRng()
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    before = randomness.mark()
    assert randomness.mark() == before
    draw()
    assert randomness.mark() != before


@pytest.mark.parametrize("draw", [random.gauss, np.random.randn])
def test_a_spare_normal_number_that_is_taken_changes_it(draw: Callable[[], float]) -> None:
    draw()
    randomness = PackedRng()
    before = randomness.mark()
    draw()
    assert randomness.mark() != before


def test_it_is_short_where_memory_shows_all() -> None:
    random.seed(5)
    randomness = PackedRng()
    assert len(randomness.mark()) < len(randomness.capture()) / 10
