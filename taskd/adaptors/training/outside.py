"""Variables of the script that its training function changes: a new process has those of its set-up, which is told.

Read from the function's code, as it is entered, and from that of the script's functions which it names.
"""

import dis
import functools
import inspect
import logging
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any, Final

from taskd.adaptors.groups.sites import is_users

_log = logging.getLogger(__name__)
_MOST: Final = 200
"""Functions that are read."""


def tell_outside(function: Any, *, tells: bool = True) -> None:
    """Warn once of all that a training function changes outside of itself, if this process `tells`."""
    found = list(dict(_changed(function)).items()) if tells else []
    if found:
        name, line = found[0]
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        _log.warning(
            "the training function changes %r (%s)%s, a variable of the script outside of it: a process that takes a "
            "rank over has that of its set-up. Keep it in an object with state_dict() and load_state_dict() that is "
            "given to TrainState, or make it from state.step",
            name,
            line,
            more,
        )


def _changed(function: Any) -> Iterator[tuple[str, str]]:
    """Name and `file:line` of each."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    left: list[Any] = [getattr(function, "__func__", function)]
    seen: set[FunctionType] = set()
    while left and len(seen) < _MOST:
        one = left.pop()
        if not isinstance(one, FunctionType) or one in seen or not is_users(one.__code__.co_filename):
            continue
        seen.add(one)
        outer = one.__code__.co_freevars if len(seen) == 1 else ()
        for code in _codes(one.__code__):
            yield from _stores(code, outer)
            left.extend(one.__globals__.get(name) for name in code.co_names)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """It, and those of the functions within."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _stores(code: CodeType, outer: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    lines = [(end, line) for _, end, line in code.co_lines() if line is not None]
    for instruction in dis.get_instructions(code):
        name = instruction.argval
        if instruction.opname == "STORE_GLOBAL" or (instruction.opname == "STORE_DEREF" and name in outer):
            line = next((line for end, line in lines if instruction.offset < end), code.co_firstlineno)
            yield name, f"{code.co_filename}:{line}"
