"""The surroundings of a copier: its world, and its callbacks into the rest of the process."""

from collections.abc import Callable
from typing import NamedTuple


class CopyWorld(NamedTuple):
    """A world in which copies are made.

    Attributes:
        prefix: prefix of its keys in the store.
        section: number of the resilient function that trains.
        key: returns the key of the job's ranks; None while it is unknown, "" if the job has none.
        state_key: names this rank's state; ranks of a node with the same name share one copy. "": each copies its own.
    """

    prefix: str
    section: int
    key: Callable[[], str | None]
    state_key: str = ""

    @property
    def name(self) -> str:
        """Name of this world, unique in the job."""
        return f"{self.prefix} {self.section}"


class CopyHooks(NamedTuple):
    """Callbacks of a copier.

    Attributes:
        step: returns the newest committed step.
        refused: called once with the reason if copies are impossible.
        begun: called once when all ranks have copies of a step.
        due_at: called with the step whose commit must call `Copying.due`; `NEVER`: no commit must.
    """

    step: Callable[[], int]
    refused: Callable[[str], None]
    begun: Callable[[], None]
    due_at: Callable[[int], None]
