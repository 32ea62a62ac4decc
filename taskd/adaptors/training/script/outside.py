"""State that the training function changes outside of itself: a new process has that of its set-up, with a warning.

Rules:

1. The state is found in the function's code, as the function is entered, and in that of the script's functions which it
   names. It consists of variables that are set by `global` or `nonlocal`, and of iterators and random generators that
   are advanced.
2. An object that a loader of the state draws from, and a generator over a loader, is kept and not reported. Neither is
   a random generator that the function seeds itself.
"""

import dis
import functools
import inspect
import logging
import random
import sys
from collections.abc import Iterator, Mapping
from itertools import pairwise
from types import CodeType, FunctionType, GeneratorType
from typing import Any, Final

import torch
from torch.utils.data import DataLoader

from taskd.adaptors.groups.sites import is_users

_log = logging.getLogger(__name__)
_MOST: Final = 200
"""Most functions that are read."""
_SET: Final = object()
_SETS: Final = ("STORE_GLOBAL", "STORE_DEREF")
_GETS: Final = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF")
_SEEDS: Final = ("manual_seed", "seed", "set_state")


def tell_outside(function: Any, parts: Mapping[str, Any], *, tells: bool = True) -> None:
    """Warn of variables that are set and of iterators that are advanced, once each.

    Args:
        function: the training function.
        parts: parts of the state.
        tells: whether this process logs the warnings.
    """
    sets: dict[str, str] = {}
    goes_on: dict[str, str] = {}
    kept = drawn_from(parts)
    found = list(used_outside(function)) if tells else []
    kept.update(id(value) for _, _, then, value in found if then in _SEEDS)
    for name, line, then, value in found:
        is_set = then is _SET
        if is_set and id(value) not in kept:
            sets.setdefault(name, line)
        elif _advances(value, kept):
            goes_on.setdefault(name, line)
    if sets:
        _log.warning(
            "the training function sets %s outside of itself: a process that takes a rank over has that of its set-up. "
            "Keep it in an object with state_dict() and load_state_dict() that is given to TrainState, or make it from "
            "state.step",
            _named(sets),
        )
    if goes_on:
        _log.warning(
            "the training function goes on with %s, an iterator or a random generator of the script's: a process that "
            "takes a rank over begins it anew, and a step that is done again goes on in it. Give the DataLoader to "
            "TrainState, or make it in each step from state.step",
            _named(goes_on),
        )


def _named(found: dict[str, str]) -> str:
    name, line = next(iter(found.items()))
    return f"{name!r} ({line})" + (f" and {len(found) - 1} more" if len(found) > 1 else "")


def used_outside(function: Any) -> Iterator[tuple[str, str, object, Any]]:
    """Yield each use of a variable that was there before: its name, `file:line`, the use, and the variable's value.

    The use is the name that is looked up in the value, if any, or `_SET`.
    """
    for one in functions_of(function):
        for code, instruction, line, then, value in _uses(one):
            kind = _SET if instruction.opname in _SETS else then
            yield instruction.argval, f"{code.co_filename}:{line}", kind, value


def functions_of(function: Any) -> Iterator[FunctionType]:
    """Yield a function without its wrappers, and the functions of the script that it and these name."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    left: list[Any] = [getattr(function, "__func__", function)]
    seen: set[FunctionType] = set()
    while left and len(seen) < _MOST:
        one = left.pop(0)
        if isinstance(one, FunctionType) and one not in seen and is_users(one.__code__.co_filename):
            seen.add(one)
            left += [value for *_, value in _uses(one) if isinstance(value, FunctionType)]
            yield one


def _uses(function: FunctionType) -> Iterator[tuple[CodeType, dis.Instruction, int, object, Any]]:
    """Yield each instruction of a function that gets or sets a variable from outside, with the variable's value."""
    around = dict(zip(function.__code__.co_freevars, map(_content, function.__closure__ or ()), strict=True))
    for code in _codes(function.__code__):
        for instruction, line, then in _instructions(code):
            name, of_function = instruction.argval, "DEREF" in instruction.opname
            if instruction.opname in (*_SETS, *_GETS) and (not of_function or name in around):
                yield code, instruction, line, then, (around if of_function else function.__globals__).get(name)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it has none yet
        return None


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code, and that of the functions within."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _instructions(code: CodeType) -> Iterator[tuple[dis.Instruction, int, object]]:
    """Yield each instruction with its line and the argument of the next instruction."""
    lines = [(end, line) for _, end, line in code.co_lines() if line is not None]
    for instruction, then in pairwise(dis.get_instructions(code)):
        line = next((line for end, line in lines if instruction.offset < end), code.co_firstlineno)
        yield instruction, line, then.argval


def drawn_from(parts: Mapping[str, Any]) -> set[int]:
    """Return the ids of the parts, and of the samplers and generators that loaders among them draw from."""
    loaders = [part for part in parts.values() if isinstance(part, DataLoader)]
    samplers = [
        of for one in loaders for of in (one.sampler, one.batch_sampler, getattr(one.batch_sampler, "sampler", 0))
    ]
    drawn = [getattr(one, "generator", None) for one in [*loaders, *samplers, *parts.values()]]
    return {id(one) for one in [*parts.values(), *samplers, *drawn] if one is not None}


def _advances(value: Any, kept: set[int]) -> bool:
    """Return whether a value is an iterator or a random number generator that taskd does not restore."""
    if id(value) in kept or isinstance(value, random.SystemRandom):
        return False
    if isinstance(value, GeneratorType):
        frame = value.gi_frame
        return frame is not None and not any(id(one) in kept for one in frame.f_locals.values())
    numpy = getattr(sys.modules.get("numpy"), "random", None)
    draws = (torch.Generator, random.Random, getattr(numpy, "Generator", ()), getattr(numpy, "RandomState", ()))
    if isinstance(value, tuple(kind for kind in draws if kind)):
        return True
    return isinstance(value, Iterator) and type(value).__module__ in ("builtins", "itertools")
