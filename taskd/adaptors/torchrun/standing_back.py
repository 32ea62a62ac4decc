"""Imports that leave the processors to others as long as nobody waits for them.

Rules:

1. The ranks import the same modules at the same time. Where processors are free the template goes on beside them; where
   it has to wait for one, it takes a quarter.
2. A message of the agent that waits to be read means that somebody needs the template: it goes on at once.
3. The nice value is no way: without privileges it cannot be lowered again, and a standby has it from its template.
"""

import select
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_SLICE_S: Final = 0.01
"""Processor time between two pauses, at least."""
_CROWDED: Final = 0.1
"""Time without a processor, as a share of that on one, from which others are taken to need it."""
_PAUSES: Final = 3.0
"""Length of a pause in slices."""


@contextmanager
def standing_back(link: socket.socket) -> Iterator[None]:
    """Pause between two imports of this process, on a crowded machine, until something can be read from `link`."""
    poller = select.poll()
    poller.register(link, select.POLLIN)
    finder = _Breath(lambda pause_s: bool(poller.poll(pause_s * 1000)))
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)


class _Breath:
    """A finder that finds nothing: the interpreter asks it before each import."""

    def __init__(self, pause: Callable[[float], bool]) -> None:
        """`pause`: waits so many seconds, and returns whether the process is needed."""
        self._pause = pause
        self._needed = False
        self._mark()

    def _mark(self) -> None:
        self._wall_s, self._ran_s = time.monotonic(), time.process_time()

    def find_spec(self, _name: str, _path: object = None, _target: object = None) -> None:
        ran_s = time.process_time() - self._ran_s
        if self._needed or ran_s < _SLICE_S:
            return
        if time.monotonic() - self._wall_s - ran_s > _CROWDED * ran_s:
            self._needed = self._pause(_PAUSES * ran_s)
        self._mark()
