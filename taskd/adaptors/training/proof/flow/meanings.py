"""Meaning of a call for the training: whether it moves a part of it, or is a clock, a random number, or output.

Rules:

1. Calls that move the training are listed: backward passes, optimizers, schedulers, averages, the model's forward pass
   where gradients are computed, seeds, the sampler's epoch. All other calls are output, and no finding.
2. An object is recognized by its type. An unknown one is recognized by its name, and only if that leaves no doubt.
"""

import re
import types
from typing import Any, Final

import torch
from torch.optim.lr_scheduler import LRScheduler

from taskd.adaptors.training.proof.flow.scope import changes_itself
from taskd.adaptors.training.proof.flow.values import MISSING, Value

_ALWAYS: Final = frozenset(
    {"backward", "set_epoch", "manual_seed", "manual_seed_all", "no_sync", "clip_grad_norm_", "clip_grad_value_"}
)
"""Methods and functions that move the training, whatever they belong to."""
_SEEDING: Final = frozenset({"manual_seed", "set_seed", "seed_everything", "seed_all"})
_OF_OPTIMIZER: Final = frozenset({"step", "zero_grad", "add_param_group", "load_state_dict", "step_update", "step_end"})
_OF_SCALER: Final = frozenset({"step", "update", "scale", "unscale_", "load_state_dict"})
_OF_MODULE: Final = frozenset({"forward", "load_state_dict", "apply", "zero_grad", "register_comm_hook"})
_OF_OTHERS: Final = re.compile(r"^(step|update|add|load|set|reset|push|append|swap|copy|apply|restore|decay)", re.ASCII)
_WITH_PARTS: Final = re.compile(r"clip|update|optim|adjust|set_lr|ema|average|all_reduce|broadcast|reset", re.ASCII)
"""Names of functions of libraries that move a part that they are given."""
_OUTPUT: Final = re.compile(r"log|print|save|write|dump|plot|eval|valid|display|summar|report|histogram", re.ASCII)
_NAMED: Final = re.compile(r"opt|sched|scaler|ema", re.ASCII)
_CLOCKS: Final = frozenset(
    {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "process_time", "now", "elapsed"}
)
_DRAWS: Final = re.compile(
    r"^(rand\w*|randn\w*|normal\w*|uniform\w*|choices?|sample|shuffle|permutation|multinomial|bernoulli|beta|gauss|"
    r"integers|binomial|exponential\w*)$",
    re.ASCII,
)
_PARTS: Final = (torch.nn.Module, torch.optim.Optimizer, LRScheduler, torch.amp.GradScaler)
_SCALARS: Final = (int, float, str, bool, types.NoneType)


def is_part(obj: Any) -> bool:
    """Return whether an object is a part of a training by its type."""
    return isinstance(obj, _PARTS)


def is_plain(obj: Any) -> bool:
    """Return whether an object can be compared as a constant."""
    return type(obj) in _SCALARS


def has_parameters(obj: Any) -> bool:
    """Return whether an object is a model, and no loss function."""
    return isinstance(obj, torch.nn.Module) and next(obj.parameters(), None) is not None


def method_moves(name: str, owner: Value, said: str, parts: frozenset[int]) -> bool:
    """Return whether a method of that name moves the training. `said`: the name of its owner in the script."""
    obj = owner.obj
    if name in _ALWAYS:
        return True
    if name == "seed":
        return obj is MISSING or not isinstance(obj, torch.nn.Module)
    if isinstance(obj, torch.nn.Module):
        return name in _OF_MODULE or changes_itself(name) or name.startswith("update")
    if isinstance(obj, torch.optim.Optimizer | LRScheduler):
        return name in _OF_OPTIMIZER
    if isinstance(obj, torch.amp.GradScaler):
        return name in _OF_SCALER
    if id(obj) in parts:
        return bool(_OF_OTHERS.match(name))
    if owner.part and changes_itself(name):
        return True
    return obj is MISSING and name in _OF_OPTIMIZER and bool(_NAMED.search(said.lower()))


def function_moves(name: str, called: Any, arguments: list[Value]) -> bool:
    """Return whether a function of a library moves a part that it is given, or seeds random numbers."""
    if name in _SEEDING:
        return True
    if isinstance(called, type) or not any(one.part for one in arguments) or _OUTPUT.search(name.lower()):
        return False
    return changes_itself(name) or bool(_WITH_PARTS.search(name.lower()))


def is_clock(name: str) -> bool:
    """Return whether a call by that name returns the time."""
    return name in _CLOCKS


def draws(name: str) -> bool:
    """Return whether a call by that name gives another value each time."""
    return bool(_DRAWS.match(name))
