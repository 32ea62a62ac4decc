"""Every living DDP wrapper of this process, wherever the script holds it, and the line that made it.

Rules:

1. DDP's constructor, and what unpickles and copies one, are wrapped once per process, before the script runs. A step
   pays nothing.
2. Wrappers are held weakly, in the order in which they were made: that order is the same on all ranks of one script.
3. One that nothing uses any more may live in a cycle of references until the garbage is collected.
"""

import functools
import weakref
from collections.abc import Callable
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from taskd.adaptors.groups.sites import script_line

_made: "list[tuple[weakref.ref[DistributedDataParallel], str]]" = []
_watching = False


def watch() -> None:
    """Know every wrapper that is made from now on. Once per process; later calls change nothing."""
    global _watching  # noqa: PLW0603 - one per process
    if not _watching:
        _watching = True
        for name in ("__init__", "__setstate__"):
            setattr(DistributedDataParallel, name, _knowing(getattr(DistributedDataParallel, name)))


def watching() -> bool:
    """Whether wrappers are known at all."""
    return _watching


def living() -> list[DistributedDataParallel]:
    """The wrappers that are still there, in the order of their making."""
    _made[:] = [entry for entry in _made if entry[0]() is not None]
    return [wrapper for reference, _ in _made if (wrapper := reference()) is not None]


def line_of(wrapper: DistributedDataParallel) -> str:
    """`file:line` of the script that made this wrapper."""
    return next((line for reference, line in _made if reference() is wrapper), "an unknown line")


def _knowing(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make)
    def made(self: DistributedDataParallel, *args: Any, **options: Any) -> Any:
        result = make(self, *args, **options)
        if all(reference() is not self for reference, _ in _made):
            _made.append((weakref.ref(self), script_line()))
        return result

    return made
