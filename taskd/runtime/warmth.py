"""When a node gets its warm processes: not while its ranks start, which they would slow down."""

import time
from typing import Final

from taskd.runtime.crew import Crew
from taskd.runtime.sockets import Peer
from taskd.runtime.standbys import StandbyPool
from taskd.wire.messages import Modules

SDKLESS_DELAY_S: Final = 10.0
"""A job that commits no step (it has no SDK) gets its warm processes so long after its start."""


class Warmth:
    """Starts the template once: when a step was committed, or when its time has come. `learn`: it imports more then."""

    def __init__(self, pool: StandbyPool, crew: Crew, *, learn: bool) -> None:
        self._pool = pool
        self._crew = crew
        self._learn = learn
        self._due_s: float | None = None

    def due_in(self, wait_s: float) -> None:
        """Start it so long from now, if nothing else has done so."""
        self._due_s = time.monotonic() + wait_s

    def look(self, now_s: float) -> None:
        """Time has passed."""
        if self._due_s is not None and now_s >= self._due_s:
            self.warm(self._crew.any_peer())

    def warm(self, peer: Peer | None) -> None:
        """Start it now; `peer` is a worker that can say what it has imported."""
        if self._due_s is None or not self._crew.python:
            return
        self._due_s = None
        if peer is None or not self._learn or not peer.send(Modules(names=())):
            self._pool.open()
