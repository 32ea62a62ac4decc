"""Start of a node's warm processes, and the modules that they import.

Rules:

1. The template starts with the ranks, because many faults come in a job's first seconds. It gives way to them
   (`adaptors/torchrun/standing_back.py`) until the first committed step, or for `SDKLESS_DELAY_S`, or until a rank
   waits for a standby.
2. A rank is queried for its imports after it has committed a step, or after `SDKLESS_DELAY_S` in a job that commits
   none. A query before the first commit is repeated after it, because the rank had not imported everything yet.
"""

import time
from collections.abc import Callable
from typing import Final

from taskd.runtime.agent.sockets import Peer
from taskd.runtime.agent.standbys import StandbyPool
from taskd.wire.messages import Modules

SDKLESS_DELAY_S: Final = 10.0
"""Time from the start to the query in a job that commits no step, because it does not use the SDK."""


class WarmUp:
    """Start of the template. With `learn`, a rank is queried for modules to import in addition to torch."""

    def __init__(
        self, pool: StandbyPool, any_rank: Callable[[], Peer | None], possible: Callable[[], bool], *, learn: bool
    ) -> None:
        """`any_rank`: returns a rank to query, if any. `possible`: whether a warm process can become a rank."""
        self._pool = pool
        self._any_rank = any_rank
        self._possible = possible
        self._learn = learn
        self._begun_s = 0.0
        self._due_s: float | None = None
        self._awaits_commit = False

    def begin(self, *, beside_ranks: bool) -> None:
        """Start the template, because the ranks start, or this node waits for a place."""
        self._begun_s = time.monotonic()
        self._awaits_commit = self._possible()
        if self._awaits_commit:
            self._due_s = self._begun_s + SDKLESS_DELAY_S
            self._pool.open()
            if not beside_ranks:
                self._pool.hurry()

    def look(self, now_s: float) -> None:
        """Query a rank if that is due."""
        if self._due_s is not None and now_s >= self._due_s:
            self._ask(self._any_rank())

    def committed(self, peer: Peer) -> None:
        """Query a rank that has committed a step, so it has imported all modules that a step needs."""
        if self._awaits_commit:
            self._awaits_commit = False
            self._pool.ranks_started(time.monotonic() - self._begun_s)
            self._ask(peer)

    def _ask(self, peer: Peer | None) -> None:
        self._due_s = None
        self._pool.hurry()
        if peer is not None and self._learn:
            peer.send(Modules(names=()))
