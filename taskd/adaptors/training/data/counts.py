"""Counts of a loader's batches that go on where a pass goes on: `enumerate(loader)`, `zip(range(n), loader)`, `islice`.

After a recovery the loader goes on within its pass. Such a count would begin anew.

Rules:

1. Only calls that the reading of the training function has found go on counting (`proof/flow/iterating.py`). All others
   are Python's own.
2. A function that has such calls gets another code object, in which the names stand for the functions of this module.
   They are variables of the function's module under names that no script has. Other functions keep `enumerate`.
3. A new process reads the function only if its predecessor's place in the data says that there are such calls
   (`Pass.is_mended`).
4. The number of batches that were handed out before is added. The pass opens at `iter()`, or with the first batch if a
   progress bar stands between.
"""

import builtins
import dis
import itertools
import sys
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any, Final, NamedTuple

_PREFIX: Final = "_taskd_counted_"


class Opened:
    """The newest pass that this process has begun or resumed.

    Attributes:
        count: how many passes were opened so far.
        handed: how many batches of the newest were handed out before.
    """

    def __init__(self) -> None:
        self.count = self.handed = 0

    def note(self, handed: int) -> None:
        """A pass is opened behind so many batches."""
        self.count += 1
        self.handed = handed


opened: Final = Opened()


class CountedCall(NamedTuple):
    """A call of the script that counts a loader's batches.

    Attributes:
        function: the outermost function whose code has the call.
        name: what is called there.
        place: `file:line` of the call.
        lines: from its first line to its last.
        loader: the part whose batches it counts.
    """

    function: FunctionType
    name: str
    place: str
    lines: range
    loader: str


_sites: Final[set[tuple[str, int]]] = set()
"""File and line of each call that goes on counting."""


def count_on(calls: Iterable[CountedCall]) -> None:
    """Have these calls go on counting, from the next call of their functions on."""
    for call in calls:
        own = _PREFIX + call.name
        function: Any = call.function
        code = _renamed(function.__code__, call.name, own)
        if code is not function.__code__:
            called = function.__globals__.get(call.name) or vars(builtins)[call.name]
            function.__globals__[own] = _COUNTING[called]
            function.__code__ = code
        _sites.update((function.__code__.co_filename, line) for line in call.lines)


def can_count_on(function: FunctionType, name: str) -> bool:
    """Return whether calls by this name can go on counting: it is a variable of the function's module, or a builtin."""
    codes = [*_codes(function.__code__)]
    uses = [one for one in codes if name in one.co_names]
    is_counted = any(_PREFIX + name in one.co_names for one in codes)
    return is_counted or (bool(uses) and all(_is_only_global(one, name) for one in uses))


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code of a function, and of those that are defined in it."""
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _codes(one)


def _renamed(code: CodeType, name: str, other: str) -> CodeType:
    """Return a function's code, and of those that are defined in it, with another name for a global."""
    if not any(name in one.co_names for one in _codes(code)):
        return code
    return code.replace(
        co_names=tuple(other if one == name else one for one in code.co_names),
        co_consts=tuple(_renamed(one, name, other) if isinstance(one, CodeType) else one for one in code.co_consts),
    )


def _is_only_global(code: CodeType, name: str) -> bool:
    """Return whether a name is read as a global, and is no attribute's too: `co_names` has one entry for both."""
    uses = [one for one in dis.get_instructions(code) if one.opcode in dis.hasname and one.argval == name]
    return bool(uses) and all(one.opname == "LOAD_GLOBAL" for one in uses)


def _is_site() -> bool:
    """Return whether the caller's caller stands at a call that goes on counting."""
    frame = sys._getframe(2)
    return (frame.f_code.co_filename, frame.f_lineno) in _sites


def _enumerate(iterable: Any, start: int = 0) -> Iterator[tuple[int, Any]]:
    """In place of `enumerate`."""
    if not _is_site():
        return enumerate(iterable, start)
    count = opened.count
    iterator = iter(iterable)
    if opened.count == count:
        return _later(iterator, start)
    return enumerate(iterator, start + opened.handed)


def _later(iterator: Iterator[Any], start: int) -> Iterator[tuple[int, Any]]:
    """Go over what opens the pass with its first batch, as tqdm's bar does."""
    count = opened.count
    first = [*itertools.islice(iterator, 1)]
    if first:
        start += opened.handed if opened.count > count else 0
        yield start, first.pop()
        yield from enumerate(iterator, start + 1)


def _islice(iterable: Any, *bounds: Any) -> Iterator[Any]:
    """In place of `islice(loader, stop)`."""
    if not _is_site() or len(bounds) > 1 or bounds == (None,):  # a line may have a second slice
        return itertools.islice(iterable, *bounds)
    (stop,) = bounds
    count = opened.count
    iterator = iter(iterable)
    return itertools.islice(iterator, max(0, stop - (opened.handed if opened.count > count else 0)))


def _zip(*iterables: Any, strict: bool = False) -> Any:
    """In place of `zip`, of one loader with ranges."""
    if not _is_site():
        return zip(*iterables, strict=strict)
    count = opened.count
    iterators = [one if type(one) is range else iter(one) for one in iterables]
    behind = opened.handed if opened.count > count else 0
    return zip(*(one[behind:] if type(one) is range else one for one in iterators), strict=strict)


_COUNTING: Final[dict[Any, Any]] = {enumerate: _enumerate, zip: _zip, itertools.islice: _islice}
