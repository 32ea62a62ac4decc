"""The processes that wait to become this rank: they come by themselves, and none is made here."""

import math

from taskd.runtime.agent.standbys import StandbyPool


class ActorPool(StandbyPool):
    """A pool in which each process that has requested the rank is a standby; one may always still come."""

    only = True

    @property
    def pending(self) -> bool:
        """Always True: the starter of this job's processes sends another one."""
        return True

    @property
    def wait_s(self) -> float:
        """Infinite: the manager decides how long to wait."""
        return math.inf

    def want(self, count: int) -> None:
        """Do nothing: none can be made here."""

    def open(self) -> None:
        """Do nothing: there is nothing to start."""

    def hurry(self) -> None:
        """Do nothing: there is nobody to hurry."""

    def refill(self, waiting: int = 0) -> None:
        """Do nothing: new processes come by themselves."""
