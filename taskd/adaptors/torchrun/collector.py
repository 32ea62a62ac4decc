"""Imports without Python's garbage collector, which walks all of torch repeatedly for a few hundred objects.

The collector takes a quarter of the time that a template needs. Only its threshold changes, not its switch. So
`gc.disable`, or a threshold that a module sets itself, stays in force.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collections() -> Iterator[None]:
    """Hold the collector's automatic runs paused."""
    before = gc.get_threshold()
    gc.set_threshold(0, *before[1:])
    paused = gc.get_threshold()
    try:
        yield
    finally:
        if gc.get_threshold() == paused:
            gc.set_threshold(*before)
