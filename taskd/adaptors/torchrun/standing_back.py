"""Imports that leave the processors to others while nobody waits for the template.

Rules:

1. The ranks import the same modules at the same time. With free processors, the template continues beside them. If it
   has to wait for one, it uses a quarter of the time.
2. An unread message of the agent means that the template is needed: it continues at once.
3. The nice value is no alternative: without privileges it cannot be lowered again, and a standby inherits it.
"""

import select
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_SLICE_S: Final = 0.01
"""Least processor time between two pauses, in seconds."""
_CROWDED: Final = 0.1
"""Waiting time as a share of processor time; above it, other processes are taken to need the processor."""
_PAUSES: Final = 3.0
"""Length of a pause in slices."""


@contextmanager
def standing_back(link: socket.socket) -> Iterator[None]:
    """Pause between this process's imports on a crowded machine, until `link` can be read."""
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
    """Finder that finds nothing: the interpreter queries it before each import."""

    def __init__(self, pause: Callable[[float], bool]) -> None:
        """Start the first slice. `pause` waits so many seconds, and returns whether the process is needed."""
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
