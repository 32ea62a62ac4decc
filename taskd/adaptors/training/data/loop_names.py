"""Local variables that a loop over a loader sets and later code reads, recorded with the last step of a pass.

If a process dies behind the last step of a pass, all processes reach that loop again with no batch left. Its successor
would lack the names that the loop sets.

Rules:

1. The reading of the training function decides which names are kept (`proof/flow/loops.py`): names that must be set
   behind the loop and that no line behind the commit sets. Other names that are read there are kept if possible: a
   print may need them.
2. Once the last batch of a pass was handed out, each commit records the names with the place in the data. The record at
   the end of a forward pass, before the commit, has none: its values belong to the step before.
3. An empty pass puts the values into the frame of the loop. Tensors come back without a graph.
4. If a needed name was not recorded, the recovery is refused: all processes start anew.
"""

import ctypes
import sys
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, Final, NamedTuple

import msgspec
import torch

from taskd.adaptors.training import tree
from taskd.errors import RefusedError, RestoreError

_MOST_BYTES: Final = 4096
"""Most bytes of one name; `_MOST_IN_ALL` bounds all names of a loop. A whole position has 64 KiB."""
_MOST_IN_ALL: Final = 16 * 1024
_DEPTH: Final = 4
_INFINITE: Final = float("inf")
_REFERENCES: Final = 3
"""References to a frame's copy of its variables if no other code holds it: frame, local name, argument of the count."""
_COPIES: Final = sys.version_info < (3, 13)
"""True if `f_locals` of a frame is a copy of its variables."""


class KeptNames(NamedTuple):
    """Names that are kept of one loop.

    Attributes:
        loader: name of the part that it iterates over.
        file: file of its source.
        first: its first line.
        last: its last line.
        commits: first and last line of each call in it that commits.
        names: names of the variables that are needed.
        others: further names that are read behind the loop.
    """

    loader: str
    file: str
    first: int
    last: int
    commits: tuple[tuple[int, int], ...]
    names: tuple[str, ...]
    others: tuple[str, ...] = ()

    def frame(self) -> FrameType | None:
        """Return the newest frame in which the loop runs; None if there is none."""
        for frame in _frames():
            if frame.f_code.co_filename == self.file and self.first <= frame.f_lineno <= self.last:
                return frame
        return None

    def commits_at(self, frame: FrameType) -> bool:
        """Return whether the loop is committing."""
        return any(first <= frame.f_lineno <= last for first, last in self.commits)


class LoopNames:
    """Kept names of the loops over one loader.

    Args:
        tell: called at most once, with a text on a name that cannot be kept and the reason.
    """

    def __init__(self, tell: Callable[[str], None] = lambda _: None) -> None:
        self._tell: Callable[[str], None] | None = tell
        self._loops: tuple[KeptNames, ...] = ()

    def keep(self, loops: Iterable[KeptNames]) -> None:
        """Keep the names of these loops, too."""
        self._loops = (*dict.fromkeys((*self._loops, *loops)),)

    def pack(self) -> bytes:
        """Return the values as they are now, encoded; empty if no such loop runs."""
        found: dict[str, bytes] = {}
        for loop in self._loops:
            if (frame := loop.frame()) is not None and loop.commits_at(frame):
                found |= self._values(loop, frame)
        return msgspec.msgpack.encode(found) if found else b""

    def put_back(self, recorded: bytes) -> None:
        """Set the recorded values in the frame of the loop that iterates over an empty pass.

        Raises:
            RefusedError: the value of a needed name was not recorded.
        """
        for loop in self._loops:
            frame = loop.frame()
            if frame is None:
                continue
            try:
                known = msgspec.msgpack.decode(recorded, type=dict[str, bytes])
                there = (*loop.names, *(name for name in loop.others if name in known))
                values = {name: tree.unpack(known[name]) for name in there}
            except (msgspec.DecodeError, LookupError, RestoreError, RuntimeError, ValueError) as error:
                names = ", ".join(loop.names)
                text = (
                    f"{loop.file}:{loop.first} has no batch left, and the last values of {names} were not recorded; "
                    f"expected numbers or small tensors. Set {names} before the loop"
                )
                raise RefusedError(text) from error
            _set(frame, values)

    def _values(self, loop: KeptNames, frame: FrameType) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        room = _MOST_IN_ALL
        for name, value in _locals_of(frame, (*loop.names, *loop.others)).items():
            data = _encoded(value)
            if data is not None and len(data) <= room:
                found[name] = data
                room -= len(data)
            elif name in loop.names and self._tell is not None:
                tell, self._tell = self._tell, None
                tell(
                    f"{name!r} is read behind the loop at {loop.file}:{loop.first} and cannot be kept: it is too "
                    f"large, or of a type of its own ({type(value).__name__}). At a fault behind that loop all "
                    "processes start anew. Keep a number in its place, or set it before the loop"
                )
        return found


def _encoded(value: Any) -> bytes | None:
    """Encode a small value; return None for any other. A value of unknown size is never encoded."""
    if _size_of(value) > _MOST_BYTES:
        return None
    data = tree.pack(value)
    return data if len(data) <= _MOST_BYTES else None


def _size_of(value: Any, depth: int = _DEPTH) -> float:
    """Return a lower bound of a value's size in bytes; infinity for a value that is not kept."""
    kind = type(value)
    if value is None or kind in (bool, int, float):
        return 1
    if kind in (str, bytes):
        return len(value)
    if isinstance(value, torch.Tensor):
        return value.nbytes if value.layout is torch.strided and not value.is_quantized else _INFINITE
    if tree.is_numpy(value):
        return int(value.nbytes)
    if kind not in (list, tuple, dict) or not depth or len(value) > _MOST_BYTES:
        return _INFINITE
    items = [*value, *value.values()] if kind is dict else value
    return sum(_size_of(one, depth - 1) for one in items)


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _locals_of(frame: FrameType, names: Iterable[str]) -> dict[str, Any]:
    """Return those of the named local variables of a frame that are set."""
    known = frame.f_locals
    found = {name: known[name] for name in names if name in known}
    if _COPIES and sys.getrefcount(known) <= _REFERENCES:  # with more references the script holds it (`locals()`)
        known.clear()  # the copy would keep all values alive
    return found


def _set(frame: FrameType, values: dict[str, Any]) -> None:
    """Set local variables of a running frame."""
    known = frame.f_locals
    known.update(values)
    if _COPIES:
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
        if sys.getrefcount(known) <= _REFERENCES:
            known.clear()
