"""A reader of pickles as plain data: nothing in a pickle is imported, called, compared or hashed.

torch's index of a checkpoint is a pickle, and unpickling runs whatever the file contains. Here its operations are
followed without any effect.

Rules:

1. An object of torch's becomes a `Made`: a name, its arguments, its state. A dictionary becomes `Pairs`.
2. Only operations that pickle has used since its protocol 4 are known, and only names that an index of torch has.
   Anything else is rejected, and the error names it.
3. Callers need no recursion over the result: they take out the values that they expect, to a depth that they know.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from operator import length_hint
from typing import Any, Final

from taskd.errors import RestoreError
from taskd.wire.text import line

_METADATA: Final = "torch.distributed.checkpoint.metadata"
_KNOWN: Final = re.compile(
    rf"{re.escape(_METADATA)}\.\w+"
    r"|torch\.distributed\.checkpoint\.filesystem\._Storage\w+"
    r"|torch\.(?:Size|(?:q?u?int|b?float|complex|bits|bool)\w*)"
    r"|torch\.serialization\._get_layout"
    r"|pathlib(?:\._local)?\.PosixPath"
    r"|builtins\.getattr",  # an early Python 3.11 writes members of enumerations with it
    re.ASCII,
)
_STOP: Final = ord(".")


class Pairs(list[Any]):
    """A dictionary as it was written: each key followed by its value. Keys may be of any kind, and may occur twice."""


@dataclass(slots=True)
class Name:
    """A class or function that the pickle calls, by its module and name."""

    full: str


@dataclass(slots=True)
class Made:
    """The object that a class or function would have made from these arguments and this state."""

    name: str
    arguments: tuple[Any, ...]
    state: Any = None


def read_pickle(data: bytes) -> Any:
    """Return the content of the pickle: plain values, lists, tuples, `Pairs`, `Name` and `Made`.

    Raises:
        RestoreError: it is damaged, or has an operation or name that no index of torch has.
    """
    codes = iter(data)
    machine = _Machine(codes)
    step = machine.steps().get
    try:
        for code in codes:
            if code == _STOP:
                return machine.stack[-1]
            step(code, _unknown)()
        raise ValueError("cut short")
    except (LookupError, ValueError, TypeError, StopIteration) as error:
        at = len(data) - length_hint(codes)
        raise RestoreError(f"byte {at} of {len(data)}: {line(str(error) or 'cut short')}") from error


def _unknown() -> None:
    raise ValueError("found an operation that no index of torch's has")


class _Machine:
    def __init__(self, codes: Iterator[int]) -> None:
        self._codes = codes
        self.stack: list[Any] = []
        self._marks: list[int] = []

    def steps(self) -> dict[int, Callable[[], object]]:
        """Return the function of each operation. The index of a large model has a few hundred thousand operations."""
        stack, marks, number, text = self.stack, self._marks, self._number, self._text
        memo: list[Any] = []
        push, pop, take = stack.append, stack.pop, self._codes.__next__
        steps: dict[str, Callable[[], object]] = {
            "\x94": lambda: memo.append(stack[-1]),
            "h": lambda: push(memo[take()]),
            "j": lambda: push(memo[number(4)]),
            "K": lambda: push(take()),
            "M": lambda: push(number(2)),
            "J": lambda: push(number(4, signed=True)),
            "\x8a": lambda: push(number(take(), signed=True)),
            "\x8c": lambda: push(text(take())),
            "X": lambda: push(text(number(4))),
            "N": lambda: push(None),
            "\x88": lambda: push(True),
            "\x89": lambda: push(False),
            ")": lambda: push(()),
            "\x85": lambda: push((pop(),)),
            "\x86": lambda: push((pop(-2), pop())),
            "\x87": lambda: push((pop(-3), pop(-2), pop())),
            "(": lambda: marks.append(len(stack)),
            "t": lambda: push(tuple(self._marked())),
            "]": lambda: push([]),
            "a": lambda: self._append([pop()]),
            "e": lambda: self._append(self._marked()),
            "}": lambda: push(Pairs()),
            "s": lambda: self._put([pop(-2), pop()]),
            "u": lambda: self._put(self._marked()),
            "\x93": lambda: push(_named(pop(-2), pop())),
            "\x81": lambda: push(_made(pop(-2), pop())),
            "R": lambda: push(_made(pop(-2), pop())),
            "b": lambda: _build(stack[-2], pop()),
            "\x80": take,  # the protocol
            "\x95": lambda: number(8),  # the length of a frame, which is not needed
        }
        return {ord(code): step for code, step in steps.items()}

    def _bytes(self, count: int) -> bytes:
        found = bytes(islice(self._codes, count))
        if len(found) < count:
            raise ValueError(f"cut short: {count} bytes were announced")
        return found

    def _number(self, size: int, *, signed: bool = False) -> int:
        return int.from_bytes(self._bytes(size), "little", signed=signed)

    def _text(self, size: int) -> str:
        return self._bytes(size).decode("utf-8", "surrogatepass")

    def _marked(self) -> list[Any]:
        begin = self._marks.pop()
        found = self.stack[begin:]
        del self.stack[begin:]
        return found

    def _append(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise TypeError("found an item for what is no list")
        self.stack[-1].extend(items)

    def _put(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not Pairs or len(items) % 2:
            raise TypeError("found a key for what is no dictionary")
        self.stack[-1].extend(items)


def _named(module: Any, name: Any) -> Name:
    if type(module) is not str or type(name) is not str:
        raise TypeError("found a name that is no text")
    full = f"{module}.{name}"
    if not _KNOWN.fullmatch(full):
        raise ValueError(f"found the name {line(full, 255)}, which no index of torch's has")
    return Name(full)


def _made(kind: Any, arguments: Any) -> Made:
    if type(kind) is not Name or type(arguments) is not tuple:
        raise TypeError("found a call of what is no name")
    return Made(kind.full, arguments)


def _build(made: Any, state: Any) -> None:
    if type(made) is not Made or made.state is not None:
        raise TypeError("found a state for what takes none")
    made.state = state
