"""Whether a node has room for the copies of its ranks' states: in shared memory, which is memory of the job too."""

import os
from pathlib import Path
from typing import Final

from taskd.runtime.system.cgroups import cgroups
from taskd.runtime.system.memory import memory_of

_GIB: Final = 1 << 30
_UNASKED: Final = 0.5
"""Copies that the script has not asked for take no more than this share of the memory that is left."""


def shortage(directory: Path, size_bytes: int, count: int, *, asked: bool) -> str:
    """Why there is no room for `count` copies of this size; "" if there is. Whether the script has `asked` for them."""
    needed = size_bytes * count
    shared = os.statvfs(directory)
    place = cgroups(os.getpid())
    memory = memory_of(place.memory if place is not None else None)
    left = {
        f"{directory.parent} has room for": shared.f_bavail * shared.f_frsize,
        "the memory that is left is": memory.free_bytes + memory.cache_bytes,
    }
    text = f"{count} copies of {size_bytes / _GIB:.3g} GiB on this node need {needed / _GIB:.3g} GiB"
    for name, has in left.items():
        if needed > has * (1 if asked else _UNASKED):
            share = "" if asked or needed > has else ", of which half is used at most"
            return f"{text}, {name} {has / _GIB:.3g} GiB{share}"
    return ""
