"""Whether a node has room for the copies of its ranks' states: their memory is memory of the job too."""

import os
from pathlib import Path
from typing import Final

from taskd.runtime.system.cgroups import cgroups
from taskd.runtime.system.memory import memory_of

_GIB: Final = 1 << 30
_UNASKED: Final = 0.5
"""Copies that the script has not asked for take no more than this share of the memory that is left."""


def shortage(memory_at: Path, size_bytes: int, count: int, *, asked: bool) -> str:
    """Why there is no room for `count` copies of this size; "" if there is. Whether the script has `asked` for them.

    `memory_at`: memory of the agent, which has no limit of its own, or a file, which has that of its file system.
    """
    needed = size_bytes * count
    files = os.statvfs(memory_at)
    place = cgroups(os.getpid())
    memory = memory_of(place.memory if place is not None else None)
    left = {"the memory that is left is": memory.free_bytes + memory.cache_bytes}
    if files.f_blocks:
        left["the files of the node's ranks have room for"] = files.f_bavail * files.f_frsize
    text = f"{count} copies of {size_bytes / _GIB:.3g} GiB on this node need {needed / _GIB:.3g} GiB"
    for name, has in left.items():
        if needed > has * (1 if asked else _UNASKED):
            share = "" if asked or needed > has else ", of which half is used at most"
            return f"{text}, {name} {has / _GIB:.3g} GiB{share}"
    return ""
