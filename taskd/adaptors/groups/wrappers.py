"""Every living DDP wrapper of this process, wherever the script holds it, and the line that made it.

Rules:

1. DDP's constructor and its unpickling and copying are wrapped once per process, before the script runs. A step pays
   nothing.
2. Wrappers are held weakly, in the order of their making. That order is the same on all ranks of one script.
3. A wrapper that nothing uses any more may live in a cycle of references until the garbage is collected.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from taskd.adaptors.groups.sites import script_line
from taskd.runtime.worker.frameless import ORIGINAL, Steps, around


@dataclass(frozen=True)
class _KnownWrapper:
    wrapper: "weakref.ref[DistributedDataParallel]"
    line: str
    inside: bool
    """True if it was made while the resilient function ran."""
    number: int
    """Its place among the wrappers made inside, or among those made outside, whether they live or not."""


_made: list[_KnownWrapper] = []
_counts = {False: 0, True: 0}
"""How many wrappers were made outside (False) and inside (True)."""
_watching = False
_inside = False


def watch() -> None:
    """Record every wrapper that is made from now on. Once per process; later calls change nothing."""
    global _watching  # noqa: PLW0603 - one per process
    if not _watching:
        _watching = True
        for name in ("__init__", "__setstate__"):
            setattr(DistributedDataParallel, name, _knowing(getattr(DistributedDataParallel, name)))


def watching() -> bool:
    """Return whether wrappers are recorded at all."""
    return _watching


@contextmanager
def inside() -> Iterator[None]:
    """Count wrappers made in this context as made inside the resilient function."""
    global _inside  # noqa: PLW0603 - one per process
    _inside = True
    try:
        yield
    finally:
        _inside = False


def living() -> list[DistributedDataParallel]:
    """Return the living wrappers, in the order of their making."""
    _made[:] = [known for known in _made if known.wrapper() is not None]
    return [wrapper for known in _made if (wrapper := known.wrapper()) is not None]


def line_of(wrapper: DistributedDataParallel) -> str:
    """Return `file:line` of the script that made this wrapper."""
    return next((known.line for known in _made if known.wrapper() is wrapper), "an unknown line")


def made_inside(wrapper: DistributedDataParallel) -> bool:
    """Return whether this wrapper was made while the resilient function ran.

    A newcomer has none like it when it joins.
    """
    return any(known.inside for known in _made if known.wrapper() is wrapper)


def places() -> tuple[int, dict[int, DistributedDataParallel]]:
    """Return how many wrappers were made outside, and the living ones of them by their place among these."""
    return _counts[False], {
        known.number: wrapper for known in _made if not known.inside and (wrapper := known.wrapper()) is not None
    }


def _knowing(make: Callable[..., Any]) -> Any:
    def made(self: DistributedDataParallel, *_: Any, **__: Any) -> Steps:
        result = yield ORIGINAL
        if all(known.wrapper() is not self for known in _made):
            _made.append(_KnownWrapper(weakref.ref(self), script_line(), _inside, _counts[_inside]))
            _counts[_inside] += 1
        return result

    return around(make, made)
