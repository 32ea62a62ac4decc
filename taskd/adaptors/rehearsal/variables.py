"""The script's own variables at a commit: those of the functions that are running there, and its globals.

Rules:

1. Each variable has one fingerprint. An object of the script's own classes has one for each attribute instead, so a
   difference has a name.
2. A function's own variables are compared only if it carries them from step to step: variables that a line reads and
   writes (`total += loss`), lists and the like. Variables that each step makes anew follow from the rest.
3. The state's contents are compared as its parts, and are left out here. So are modules, functions and classes.
"""

import dataclasses
import dis
import functools
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, Final

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from taskd.adaptors.groups.sites import is_users
from taskd.adaptors.training.fingerprints import Fingerprint

_LEFT_OUT: Final = (ModuleType, FunctionType, type, functools.partial, DataLoader, Sampler, Dataset, torch.device)
_KNOWN: Final = ("builtins", "collections", "numpy", "random", "torch")
"""Modules whose objects are compared; those of other libraries are left to them."""
_MOST: Final = 400


@dataclasses.dataclass(frozen=True)
class Variable:
    """One variable, as it is now."""

    name: str
    text: str
    moves: bool
    """True if a tensor or a generator of random numbers is in it."""
    local: bool
    """True if the training function makes it anew whenever it is called."""


def script_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frames of the script's own code, from the innermost outwards."""
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def variables(frame: FrameType | None, own: frozenset[int]) -> list[Variable]:
    """Return all variables that this frame can reach, each name once; `own` are ids of the state's contents."""
    found: dict[str, Variable] = {}
    for name, value, local in _named(frame):
        if len(found) >= _MOST:
            break
        for full, one in _with_attributes(name, value):
            if full not in found and not _is_left_out(full, one, own):
                mark = Fingerprint(one, own)
                if mark.text:
                    found[full] = Variable(full, mark.text, mark.moves, local)
    return list(found.values())


def look_up(frame: FrameType | None, name: str) -> Any:
    """Return the present value of a variable or its attribute; None if it is not there."""
    first, _, attribute = name.partition(".")
    for known, value, _ in _named(frame):
        if known == first:
            return value if not attribute else getattr(value, "__dict__", {}).get(attribute)
    return None


def _named(frame: FrameType | None) -> Iterator[tuple[str, Any, bool]]:
    inside = True
    globals_: list[Mapping[str, Any]] = []
    while frame is not None:
        code = frame.f_code
        if is_users(code.co_filename):
            if frame.f_locals is not frame.f_globals and code.co_name != "<module>":
                yield from _of_function(code, frame.f_locals, inside=inside)
            if not any(known is frame.f_globals for known in globals_):
                globals_.append(frame.f_globals)
        elif code.co_name == "run" and "function" in code.co_freevars:
            inside = False  # the decorated function's wrapper: objects further out are made once
        frame = frame.f_back
    for known in globals_:
        yield from ((name, value, False) for name, value in list(known.items()) if not name.startswith("__"))


def _of_function(code: CodeType, values: Mapping[str, Any], *, inside: bool) -> Iterator[tuple[str, Any, bool]]:
    for name, value in list(values.items()):
        local = inside and name not in code.co_freevars
        held = isinstance(value, list | dict | set | deque) or _is_scripts_own(type(value))
        if not local or held or name in _carried(code):
            yield name, value, local


@functools.cache
def _carried(code: CodeType) -> frozenset[str]:
    """Return the names of variables that one line of the function reads and writes: `total += loss`."""
    reads: dict[int, set[str]] = {}
    writes: dict[int, set[str]] = {}
    line = 0
    for instruction in dis.get_instructions(code):
        starts = instruction.starts_line
        if type(starts) is int:
            line = starts
        elif starts:  # a flag, from Python 3.13 on
            line = getattr(instruction, "line_number", None) or line
        for words, lines in (
            ("LOAD_FAST", reads),
            ("LOAD_DEREF", reads),
            ("STORE_FAST", writes),
            ("STORE_DEREF", writes),
        ):
            if instruction.opname.startswith(words):
                names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
                lines.setdefault(line, set()).update(names)
    return frozenset(name for at in reads for name in reads[at] & writes.get(at, set()))


def _with_attributes(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if _is_scripts_own(type(value)) and not isinstance(value, torch.nn.Module):
        yield from ((f"{name}.{attribute}", inner) for attribute, inner in list(getattr(value, "__dict__", {}).items()))
    else:
        yield name, value


def _is_scripts_own(kind: type) -> bool:
    return is_users(str(getattr(sys.modules.get(kind.__module__), "__file__", None) or "<none>"))


def _is_left_out(name: str, value: Any, own: frozenset[int]) -> bool:
    if id(value) in own or isinstance(value, _LEFT_OUT) or name.startswith("__"):
        return True
    known = type(value).__module__.partition(".")[0] in _KNOWN
    return not (known or _is_scripts_own(type(value)) or isinstance(value, torch.nn.Module))
