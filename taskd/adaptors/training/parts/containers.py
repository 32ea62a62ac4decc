"""Optimizers that hold others and step those, such as torchtitan's container of one for each part of the model."""

from collections.abc import Iterator
from typing import Any

import torch

from taskd.errors import ConfigError


def held_by(optimizer: torch.optim.Optimizer) -> Iterator[torch.optim.Optimizer]:
    """The optimizers among its attributes, and in lists and dicts of these."""
    for value in vars(optimizer).values():
        items = [value] if isinstance(value, torch.optim.Optimizer) else _listed(value)
        yield from (one for one in items if isinstance(one, torch.optim.Optimizer) and one is not optimizer)


def expect_own_state(name: str, part: Any) -> None:
    """Raise ConfigError if a part is an optimizer that has a list of others, and with those all of its state."""
    if not isinstance(part, torch.optim.Optimizer):
        return
    count = sum(isinstance(one, torch.optim.Optimizer) for value in vars(part).values() for one in _listed(value))
    if count:
        raise ConfigError(
            f"TrainState argument {name!r} is a {type(part).__name__}, which steps other optimizers (found {count}) "
            "and has no state of its own; expected those: pass each of them by its own name"
        )


def _listed(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [*value]
    return [*value.values()] if type(value) is dict else []
