"""Counts of a loader's batches that resume with a pass: `enumerate(loader)`, `zip(range(n), loader)`, `islice`.

After a recovery the loader resumes within its pass. Such a count would begin anew.

Rules:

1. Only calls that the reading of the training function has found resume their count (`proof/flow/iterating.py`). All
   other calls are Python's own.
2. A function with such calls gets another code object, in which the names refer to the functions of this module. They
   are variables of the function's module under names that no script has. Other functions keep `enumerate`.
3. A new process reads the function only if its predecessor's place in the data requires it (`Pass.is_mended`).
4. The number of batches that were handed out before is added to the count. The pass opens at `iter()`, or with the
   first batch if a progress bar stands between.
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
        count: number of passes that were opened so far.
        handed: batches of the newest pass that were handed out before it was opened.
    """

    def __init__(self) -> None:
        self.count = self.handed = 0

    def note(self, handed: int) -> None:
        """Record that a pass is opened behind `handed` batches."""
        self.count += 1
        self.handed = handed


opened: Final = Opened()


class CountedCall(NamedTuple):
    """A call of the script that counts a loader's batches.

    Attributes:
        function: the outermost function whose code has the call.
        name: name of the called function in the source.
        place: `file:line` of the call.
        lines: lines of the call, from the first to the last.
        loader: the part whose batches it counts.
    """

    function: FunctionType
    name: str
    place: str
    lines: range
    loader: str


_sites: Final[set[tuple[str, int]]] = set()
"""File and line of each call that resumes its count."""


def count_on(calls: Iterable[CountedCall]) -> None:
    """Have these calls resume their counts, from the next call of their functions on."""
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
    """Return whether calls by this name can resume: it must be a variable of the function's module, or a builtin."""
    codes = [*_codes(function.__code__)]
    uses = [one for one in codes if name in one.co_names]
    is_counted = any(_PREFIX + name in one.co_names for one in codes)
    return is_counted or (bool(uses) and all(_is_only_global(one, name) for one in uses))


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a function and of the functions that are defined in it."""
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _codes(one)


def _renamed(code: CodeType, name: str, other: str) -> CodeType:
    """Return the code of a function with another name for a global, also in functions that are defined in it."""
    if not any(name in one.co_names for one in _codes(code)):
        return code
    return code.replace(
        co_names=tuple(other if one == name else one for one in code.co_names),
        co_consts=tuple(_renamed(one, name, other) if isinstance(one, CodeType) else one for one in code.co_consts),
    )


def _is_only_global(code: CodeType, name: str) -> bool:
    """Return whether a name is read as a global and is no attribute too: `co_names` has one entry for both."""
    uses = [one for one in dis.get_instructions(code) if one.opcode in dis.hasname and one.argval == name]
    return bool(uses) and all(one.opname == "LOAD_GLOBAL" for one in uses)


def _is_site() -> bool:
    """Return whether the caller's caller stands at a call that resumes its count."""
    frame = sys._getframe(2)
    return (frame.f_code.co_filename, frame.f_lineno) in _sites


def _enumerate(iterable: Any, start: int = 0) -> Iterator[tuple[int, Any]]:
    """Stand in for `enumerate`. A recorded call counts on behind the batches that were handed out before."""
    if not _is_site():
        return enumerate(iterable, start)
    count = opened.count
    iterator = iter(iterable)
    if opened.count == count:
        return _later(iterator, start)
    return enumerate(iterator, start + opened.handed)


def _later(iterator: Iterator[Any], start: int) -> Iterator[tuple[int, Any]]:
    """Enumerate an iterator that opens the pass with its first batch, as tqdm's bar does."""
    count = opened.count
    first = [*itertools.islice(iterator, 1)]
    if first:
        start += opened.handed if opened.count > count else 0
        yield start, first.pop()
        yield from enumerate(iterator, start + 1)


def _islice(iterable: Any, *bounds: Any) -> Iterator[Any]:
    """Stand in for `islice(loader, stop)`. A recorded call counts the batches that were handed out before."""
    if not _is_site() or len(bounds) > 1 or bounds == (None,):  # a line may have a second slice
        return itertools.islice(iterable, *bounds)
    (stop,) = bounds
    count = opened.count
    iterator = iter(iterable)
    return itertools.islice(iterator, max(0, stop - (opened.handed if opened.count > count else 0)))


def _zip(*iterables: Any, strict: bool = False) -> Any:
    """Stand in for `zip` of one loader with ranges. In a recorded call ranges go on behind the batches of before."""
    if not _is_site():
        return zip(*iterables, strict=strict)
    count = opened.count
    iterators = [one if type(one) is range else iter(one) for one in iterables]
    behind = opened.handed if opened.count > count else 0
    return zip(*(one[behind:] if type(one) is range else one for one in iterators), strict=strict)


_COUNTING: Final[dict[Any, Any]] = {enumerate: _enumerate, zip: _zip, itertools.islice: _islice}
