"""The processes that wait to become this rank: they come by themselves, and none is made here."""

import math

from taskd.runtime.agent.standbys import StandbyPool


class ActorPool(StandbyPool):
    """Whoever has asked for the rank is a standby; one may always still come."""

    wait_s = math.inf
    only = True

    @property
    def pending(self) -> bool:
        """Whoever starts this job's processes sends another one; the manager knows how long to wait."""
        return True

    def want(self, count: int) -> None:
        """None can be made."""

    def open(self) -> None:
        """Nothing to start."""

    def refill(self, extra: int = 0) -> None:
        """Nobody to ask."""
