"""Containers of other parts, such as torchtitan's of one optimizer and one scheduler for each part of a model.

A container has no state of its own, or only that of one of its members. The members are parts, in its place.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler


def opened(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts; the members of a container stand there under its name and their numbers."""
    found: dict[str, Any] = {}
    for name, part in parts.items():
        inner = contained(part)
        found |= {f"{name}_{number}": one for number, one in enumerate(inner)} if inner else {name: part}
    return found


def contained(part: Any) -> list[Any]:
    """Return the members that a container holds in a list or a dict; none if the part is no container."""
    if isinstance(part, torch.optim.Optimizer):
        return [
            one for value in vars(part).values() for one in _listed(value) if isinstance(one, torch.optim.Optimizer)
        ]
    values = [*getattr(part, "__dict__", {}).values()]
    items = _listed(values[0]) if len(values) == 1 and not isinstance(part, LRScheduler | torch.nn.Module) else []
    return items if all(isinstance(one, LRScheduler) for one in items) else []


def held_by(optimizer: torch.optim.Optimizer) -> Iterator[torch.optim.Optimizer]:
    """Yield the optimizers among an optimizer's attributes, and in lists and dicts of these."""
    for value in vars(optimizer).values():
        items = [value] if isinstance(value, torch.optim.Optimizer) else _listed(value)
        yield from (one for one in items if isinstance(one, torch.optim.Optimizer) and one is not optimizer)


def _listed(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [*value]
    return [*value.values()] if type(value) is dict else []
