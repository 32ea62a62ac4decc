"""Generators of random numbers that a script makes itself: their recognition, and their states."""

import ast
import random
import sys
from typing import Any, Final

import torch

from taskd.adaptors.training.tree import bytes_of

_ARRAY: Final = "array("


def raw_state_of_generator(value: Any) -> Any:
    """Return the state of a random number generator as its library gives it; None for any other value."""
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return value.getstate()
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is not None and isinstance(value, numpy.Generator):
        return value.bit_generator.state
    if numpy is not None and isinstance(value, numpy.RandomState):
        return value.get_state()
    return None


def state_of_generator(value: Any) -> str | None:
    """Return the state of a random number generator as a text; None for any other value."""
    state = raw_state_of_generator(value)
    return None if state is None else text_of_state(state)


def text_of_state(state: Any) -> str:
    """Encode a state that `raw_state_of_generator` has returned."""
    if isinstance(state, torch.Tensor):
        return bytes_of(state).hex()
    if isinstance(state, tuple) and isinstance(state[0], str):  # numpy's RandomState: name, array, and three numbers
        return repr([state[1].tobytes(), state[2:]])
    return repr(state)


def put_generator(value: Any, state: Any) -> None:
    """Set the state of a generator, as returned by `raw_state_of_generator` or `state_from`."""
    if isinstance(value, random.Random):
        value.setstate(state)
    elif hasattr(value, "bit_generator"):
        value.bit_generator.state = state
    else:
        value.set_state(state)


def state_from(text: str, value: Any) -> Any:
    """Decode a text of `text_of_state` for the generator `value`; None if the text is incomplete, or is no such text.

    It is incomplete for numpy's bit generators that keep an array (`MT19937`, `Philox`, `SFC64`).
    """
    if isinstance(value, torch.Generator):
        return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
    if _ARRAY in text:
        return None
    try:
        known = ast.literal_eval(text)
    except (SyntaxError, RecursionError, MemoryError):
        return None
    if isinstance(value, random.Random) or hasattr(value, "bit_generator"):
        return known
    return ("MT19937", sys.modules["numpy"].frombuffer(known[0], dtype="uint32"), *known[1])
