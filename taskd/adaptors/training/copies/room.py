"""Room on a node for the copies of its ranks' states, whose memory counts as the job's memory too."""

import errno
import os
from pathlib import Path
from typing import Final, cast

from taskd.runtime.system.cgroups import cgroups
from taskd.runtime.system.memory import memory_of

_GIB: Final = 1 << 30
_LITTLE_BYTES: Final = 1 << 24
"""Size below which copies are never given back."""
_UNASKED: Final = 0.5
"""Largest share of the free memory for copies that the script has not requested."""


def shortage(memory_at: Path, size_bytes: int, count: int, *, asked: bool) -> str:
    """Return why there is no room for `count` copies of this size; "" if there is.

    `memory_at`: memory of the agent, which has no limit of its own, or a file, which has that of its file system.
    `asked`: whether the script has requested the copies.
    """
    needed = size_bytes * count
    files = os.statvfs(memory_at)
    left = {"the memory that is left is": _left_bytes()}
    if files.f_blocks:
        left["the files of the node's ranks have room for"] = files.f_bavail * files.f_frsize
    text = f"{count} copies of {size_bytes / _GIB:.3g} GiB on this node need {needed / _GIB:.3g} GiB"
    for name, has in left.items():
        if needed > has * (1 if asked else _UNASKED):
            share = "" if asked or needed > has else ", of which half is used at most"
            return f"{text}, {name} {has / _GIB:.3g} GiB{share}"
    return ""


def expect_memory(needed_bytes: int, *, asked: bool) -> None:
    """Raise `OSError` if copies cannot grow by `needed_bytes`: the kernel would kill a process of the job."""
    left_bytes = _left_bytes()
    if needed_bytes > left_bytes * (1 if asked else _UNASKED):
        text = f"copies on this node grow by {needed_bytes / _GIB:.3g} GiB, the memory that is left is"
        share = "" if asked or needed_bytes > left_bytes else ", of which half is used at most"
        raise OSError(errno.ENOSPC, f"{text} {left_bytes / _GIB:.3g} GiB{share}")


def is_pressed(held_bytes: int) -> bool:
    """Return whether copies of this size take more than half of the memory that would be free without them."""
    return held_bytes >= _LITTLE_BYTES and _left_bytes() < held_bytes


def nowhere(size_bytes: int) -> memoryview:
    """Return a stand-in for memory of this size if there is no room: an incoming copy is read and dropped."""
    return cast("memoryview", _Nowhere(size_bytes))


class _Nowhere:
    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes

    def __len__(self) -> int:
        return self._size_bytes

    def __getitem__(self, part: slice) -> "_Nowhere":
        return _Nowhere(len(range(*part.indices(self._size_bytes))))

    def __setitem__(self, part: slice, content: memoryview) -> None:
        """Drop the content."""


def _left_bytes() -> int:
    place = cgroups(os.getpid())
    memory = memory_of(place.memory if place is not None else None)
    return memory.free_bytes + memory.cache_bytes
