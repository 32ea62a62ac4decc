"""Generators of random numbers that a script makes itself: which objects are one, and where one stands."""

import random
import sys
from typing import Any

import torch

from taskd.adaptors.training.tree import bytes_of


def state_of_generator(value: Any) -> str | None:
    """Where a generator of random numbers stands; None if a value is none."""
    if isinstance(value, torch.Generator):
        return bytes_of(value.get_state()).hex()
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return repr(value.getstate())
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is not None and isinstance(value, numpy.Generator):
        return repr(value.bit_generator.state)
    if numpy is not None and isinstance(value, numpy.RandomState):
        return repr([value.get_state()[1].tobytes(), value.get_state()[2:]])
    return None
