"""The processes that wait to become this rank: they come by themselves, and none is made here."""

import math

from taskd.runtime.agent.standbys import StandbyPool


class ActorPool(StandbyPool):
    """Whoever has asked for the rank is a standby; one may always still come."""

    only = True

    @property
    def pending(self) -> bool:
        """Whoever starts this job's processes sends another one."""
        return True

    @property
    def wait_s(self) -> float:
        """The manager knows how long to wait."""
        return math.inf

    def want(self, count: int) -> None:
        """None can be made."""

    def open(self) -> None:
        """Nothing to start."""

    def hurry(self) -> None:
        """Nobody to hurry."""

    def refill(self, waiting: int = 0) -> None:
        """Nobody to ask."""
