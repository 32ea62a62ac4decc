"""Local variables that a loop over a loader sets and that are read behind it: kept with the last step of a pass.

If a process dies behind the last step of a pass, its successor and all others come to that loop again with nothing
left to go over, and the names that it sets would not be there.

Rules:

1. Which names are kept is known from the reading of the training function (`proof/flow/loops.py`): those that must be
   set behind the loop, and that no line behind the commit sets. Others that are read there are kept if they can be:
   what is printed may need them.
2. As soon as the last batch of a pass was handed out, each commit records them, with the place in the data. The record
   that is made before the commit, as a forward pass ends, has none: they belong to the step before.
3. As an empty pass is gone over, they are put into the frame of the loop. Tensors come back without a graph.
4. If one that is needed was not recorded, the recovery is refused: all processes start anew.
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
"""Of one name; of all names of a loop `_MOST_IN_ALL`. A whole position has 64 KiB."""
_MOST_IN_ALL: Final = 16 * 1024
_DEPTH: Final = 4
_INFINITE: Final = float("inf")
_REFERENCES: Final = 3
"""To a frame's copy of its variables that nobody else holds: the frame, a name here, and the count's argument."""
_COPIES: Final = sys.version_info < (3, 13)
"""Whether `f_locals` of a frame is a copy of its variables."""


class KeptNames(NamedTuple):
    """What is kept of one loop.

    Attributes:
        loader: the part that it goes over.
        file: of its text.
        first: its first line.
        last: its last line.
        commits: lines of the calls in it that commit: from, and to.
        names: of the variables that are needed.
        others: names that are read behind it, too.
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
        tell: is told, once, which name cannot be kept, and why.
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
        """An empty pass is gone over: give the frame of its loop the values that were recorded.

        Raises:
            RefusedError: one of them was not.
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
    """Encode a small value; None for any other. Nothing is encoded whose size is not known before."""
    if _size_of(value) > _MOST_BYTES:
        return None
    data = tree.pack(value)
    return data if len(data) <= _MOST_BYTES else None


def _size_of(value: Any, depth: int = _DEPTH) -> float:
    """Return at least how many bytes a value has; infinity for what is not kept."""
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
    """Return these local variables of a frame, as far as they are set."""
    known = frame.f_locals
    found = {name: known[name] for name in names if name in known}
    if _COPIES and sys.getrefcount(known) <= _REFERENCES:  # else the script has it (`locals()`)
        known.clear()  # it would hold all of them
    return found


def _set(frame: FrameType, values: dict[str, Any]) -> None:
    """Set local variables of a frame that runs."""
    known = frame.f_locals
    known.update(values)
    if _COPIES:
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
        if sys.getrefcount(known) <= _REFERENCES:
            known.clear()
