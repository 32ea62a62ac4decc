"""Kinds of the parts of a training state: equal on all ranks, or each rank's own, as stated or known by their type.

Rules:

1. Equal on all ranks (*replicated*) by type: models, optimizers, schedulers and gradient scalers, also those of other
   libraries that hold one of torch's optimizers as `optimizer`. The script states it of the parts in `replicated`.
2. Each rank's own place in the data, by type: torch's data loaders and samplers, and classes derived from them. The
   script states it of the parts in `data`.
3. A name implies no kind. A part is refused if neither its type nor the script gives its kind, or if they contradict
   each other: a wrong guess would show at a recovery, as data seen twice or weights that differ.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, DistributedSampler, Sampler

from taskd.adaptors.training.parts.containers import contained
from taskd.errors import ConfigError

_REPLICATED: Final = (torch.nn.Module, torch.optim.Optimizer, LRScheduler, torch.amp.GradScaler)
_POSITION: Final = (DataLoader, Sampler)


@dataclass(frozen=True)
class Sorted:
    """All parts by name, in the order in which they were given, and the names of those that are each rank's own."""

    all: dict[str, Any]
    positions: frozenset[str]


def sort(
    by_keyword: Mapping[str, Any],
    data: Mapping[str, Any] | None = None,
    replicated: Mapping[str, Any] | None = None,
    *,
    taken: Collection[str] = (),
) -> Sorted:
    """Check and sort the arguments of a `TrainState`. Parts that are None are left out.

    `taken`: names that the state uses itself.

    Raises:
        ConfigError: a part cannot be saved and loaded, or its kind is unknown or differs from the stated one; a name is
            given twice, is taken, or is no identifier.
    """
    found: dict[str, Any] = {}
    positions: set[str] = set()
    for said, given in (("", by_keyword), ("replicated", replicated), ("data", data)):
        if given is None:
            continue
        if said:
            _expect_names(said, given)
        for name, part in given.items():
            if part is None:
                continue
            if name in taken:
                raise ConfigError(f"TrainState uses the name {name!r} itself; pass that argument under another name")
            if name in found:
                raise ConfigError(f"TrainState got two parts by the name {name!r}; give one of them another name")
            _expect_state(name, part)
            if _is_position(name, part, said):
                positions.add(name)
            found[name] = part
    return Sorted(found, frozenset(positions))


def has_epoch_only(part: Any) -> bool:
    """Return whether a part is a sampler whose place is its epoch."""
    return isinstance(part, DistributedSampler) and not hasattr(part, "state_dict")


def has_state(part: Any) -> bool:
    """Return whether a part can be saved and loaded."""
    return callable(getattr(part, "state_dict", None)) and callable(getattr(part, "load_state_dict", None))


def _expect_names(said: str, given: Any) -> None:
    if not isinstance(given, Mapping) or not all(isinstance(name, str) and name.isidentifier() for name in given):
        what = f"the names {', '.join(map(repr, given))}" if isinstance(given, Mapping) else f"a {type(given).__name__}"
        raise ConfigError(
            f"TrainState argument {said!r} is or has {what}, expected a dict of parts by names that are identifiers; "
            f"pass {said}={{'name': …}}"
        )


def _is_position(name: str, part: Any, said: str) -> bool:
    """Return whether the part is this rank's own place in the data; `said` is the argument that has it."""
    by_type = "replicated" if _is_replicated(part) else "data" if isinstance(part, _POSITION) else ""
    if said and by_type and said != by_type:
        what = {"replicated": "equal on all ranks", "data": "each rank's own place in its data"}[by_type]
        raise ConfigError(
            f"TrainState argument {said!r} has {name!r}, a {type(part).__name__}, which is {what} by its type; pass it "
            f"by keyword: {name}=…"
        )
    if not said and not by_type:
        raise ConfigError(
            f"TrainState argument {name!r} is a {type(part).__name__}, which may be equal on all ranks or each rank's "
            "own place in its data; expected a model, optimizer, scheduler, gradient scaler, DataLoader or Sampler by "
            f"keyword. If it is equal on all ranks pass replicated={{{name!r}: …}}, else data={{{name!r}: …}}"
        )
    return (said or by_type) == "data"


def _is_replicated(part: Any) -> bool:
    """Return whether a part's type is replicated, or that of the `scheduler` or `optimizer` that it holds.

    Accelerate's scheduler holds the one that it wraps as `scheduler`; those of timm and Megatron hold an optimizer.
    """
    if isinstance(part, _REPLICATED) or contained(part):
        return True
    inner = getattr(part, "scheduler", None)
    return isinstance(inner, LRScheduler) or isinstance(getattr(part, "optimizer", None), torch.optim.Optimizer)


def _expect_state(name: str, part: Any) -> None:
    if has_epoch_only(part) or has_state(part) or isinstance(part, DataLoader):
        return
    raise ConfigError(
        f"TrainState argument {name!r} is a {type(part).__name__}, expected something with state_dict() and "
        "load_state_dict(), or a DataLoader; pass an object that has both"
    )
