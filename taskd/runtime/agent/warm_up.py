"""When a node starts its warm processes, and what they import.

Rules:

1. Not while its ranks start, because that would slow them down: after the first committed step, or after
   `SDKLESS_DELAY_S` in a job that commits none.
2. A rank is asked what it has imported after it has committed a step. A rank that was asked earlier, because it takes
   long to start, is asked again: it had not imported everything yet.
"""

import time
from collections.abc import Callable
from typing import Final

from taskd.runtime.agent.sockets import Peer
from taskd.runtime.agent.standbys import StandbyPool
from taskd.wire.messages import Modules

SDKLESS_DELAY_S: Final = 10.0
"""A job that commits no step (it does not use the SDK) gets its warm processes this long after its start."""


class WarmUp:
    """Starts the template. With `learn`, asks a rank first what to import in addition to torch."""

    def __init__(
        self, pool: StandbyPool, any_rank: Callable[[], Peer | None], possible: Callable[[], bool], *, learn: bool
    ) -> None:
        """`any_rank`: a rank to ask, if there is one. `possible`: whether a warm process can become a rank."""
        self._pool = pool
        self._any_rank = any_rank
        self._possible = possible
        self._learn = learn
        self._due_s: float | None = None
        self._awaits_commit = False

    def due_in(self, wait_s: float) -> None:
        """The ranks start. Start the template after `wait_s`, unless a committed step does so before."""
        self._due_s = time.monotonic() + wait_s
        self._awaits_commit = True

    def look(self, now_s: float) -> None:
        """Time has passed."""
        if self._due_s is not None and now_s >= self._due_s:
            self._warm(self._any_rank())

    def committed(self, peer: Peer) -> None:
        """A rank has committed a step, so it has imported all that a step needs."""
        if self._awaits_commit:
            self._awaits_commit = False
            self._warm(peer)

    def _warm(self, peer: Peer | None) -> None:
        self._due_s = None
        if self._possible() and (peer is None or not self._learn or not peer.send(Modules(names=()))):
            self._pool.open()
