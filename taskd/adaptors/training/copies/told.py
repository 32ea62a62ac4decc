"""What a copier is told of the world that it copies in, and what it asks and tells the rest of this process."""

from collections.abc import Callable
from typing import NamedTuple


class CopyWorld(NamedTuple):
    """A world in which copies are made: how its keys in the store begin, and which of the script's functions trains.

    `key` is asked for the key of the job's ranks: None as long as it is not known, "" if there is none. `held` is what
    the rank holds, as it is said to those of its node that may hold the same; "" where every rank copies its own.
    """

    prefix: str
    section: int
    key: Callable[[], str | None]
    held: str = ""

    @property
    def name(self) -> str:
        """Its name among the ranks: no other world of the job has it."""
        return f"{self.prefix} {self.section}"


class CopyHooks(NamedTuple):
    """What a copier asks and tells.

    Attributes:
        step: asked for the step that the main thread has committed.
        refused: called with the reason, once, if there can be no copies.
        begun: called, once, when all ranks have copies of a step.
        demand: called with whether the next commit is to be told of.
    """

    step: Callable[[], int]
    refused: Callable[[str], None]
    begun: Callable[[], None]
    demand: Callable[[bool], None]
