"""When a node gets its warm processes, and what they import.

Rules:

1. Not while its ranks start, which they would slow down: when the first step was committed, or when a job that commits
   none has had its time.
2. A rank says what it has imported when it has committed a step. One that was asked before, because it takes long to
   start, had not imported everything yet: it is asked again.
"""

import time
from collections.abc import Callable
from typing import Final

from taskd.runtime.agent.sockets import Peer
from taskd.runtime.agent.standbys import StandbyPool
from taskd.wire.messages import Modules

SDKLESS_DELAY_S: Final = 10.0
"""A job that commits no step (it has no SDK) gets its warm processes so long after its start."""


class Warmth:
    """Starts the template, and asks ranks what it should import beyond torch, if that is wanted (`learn`)."""

    def __init__(
        self, pool: StandbyPool, any_rank: Callable[[], Peer | None], possible: Callable[[], bool], *, learn: bool
    ) -> None:
        """`any_rank`: a process to ask, if there is one. `possible`: whether a warm process can become a rank."""
        self._pool = pool
        self._any_rank = any_rank
        self._possible = possible
        self._learn = learn
        self._due_s: float | None = None
        self._awaits_commit = False

    def due_in(self, wait_s: float) -> None:
        """The ranks start. Start the template so long from now, if nothing else has done so."""
        self._due_s = time.monotonic() + wait_s
        self._awaits_commit = True

    def look(self, now_s: float) -> None:
        """Time has passed."""
        if self._due_s is not None and now_s >= self._due_s:
            self._warm(self._any_rank())

    def committed(self, peer: Peer) -> None:
        """A rank has committed a step: all that it needs for one is imported."""
        if self._awaits_commit:
            self._awaits_commit = False
            self._warm(peer)

    def _warm(self, peer: Peer | None) -> None:
        self._due_s = None
        if self._possible() and (peer is None or not self._learn or not peer.send(Modules(names=()))):
            self._pool.open()
