"""Schedulers, optimizers, scalers and averages that belong to the training but were not given to the state.

A new process would continue to train with those of its set-up, and a step that is done again would move them twice.
They are found among all objects of their kinds when the training function is entered.
"""

from collections.abc import Iterator
from typing import Any, Final

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from taskd.adaptors.groups.instances import instances
from taskd.adaptors.training.parts.containers import held_by
from taskd.adaptors.training.parts.parts import Parts

_KINDS: Final = (LRScheduler, torch.optim.Optimizer, torch.amp.GradScaler, AveragedModel)
_DEPTH: Final = 3
"""Depth inside a part down to which its own `state_dict` is assumed to cover all objects."""


def forgotten(parts: Parts) -> list[Any]:
    """Return the forgotten objects, each once."""
    found = instances(*_KINDS)
    covered = set(map(id, _within([*parts.all.values(), *parts.replicated.values()], _DEPTH)))
    groups = {id(optimizer.param_groups) for optimizer in parts.optimizers}
    trained = {id(parameter) for parameter in parts.parameters()}
    shapes = [_shapes(module) for module in parts.modules]
    return [
        one
        for one in found
        if id(one) not in covered
        and not _only_steps(one, covered)
        and (_shapes(one.module) in shapes if isinstance(one, AveragedModel) else _belongs(one, groups, trained))
    ]


def _only_steps(one: Any, covered: set[int]) -> bool:
    """Return whether the object is an optimizer that holds others, all of which were given."""
    inner = [*held_by(one)] if isinstance(one, torch.optim.Optimizer) else []
    return bool(inner) and all(id(optimizer) in covered for optimizer in inner)


def _shapes(module: torch.nn.Module) -> list[torch.Size]:
    return [parameter.shape for parameter in module.parameters()]


def _belongs(one: Any, groups: set[int], trained: set[int]) -> bool:
    """Return whether the object acts on the parameters or optimizers of the state, or is a scaler that is enabled."""
    if isinstance(one, LRScheduler):
        return id(getattr(getattr(one, "optimizer", None), "param_groups", None)) in groups
    if isinstance(one, torch.optim.Optimizer):
        own = getattr(one, "param_groups", [])
        return id(own) not in groups and any(id(p) in trained for group in own for p in group["params"])
    return bool(one.is_enabled())


def _within(values: list[Any], depth: int) -> Iterator[Any]:
    """Yield these values, and the values that they hold as attributes, in lists and in dicts, down to `depth`."""
    for value in values:
        yield value
        if depth and not isinstance(value, torch.Tensor | type):
            items = [*value.values()] if type(value) is dict else [*value] if type(value) in (list, tuple) else []
            yield from _within([*items, *getattr(value, "__dict__", {}).values()], depth - 1)
