"""Where else a training state is kept while the training function runs: copies in shared memory, and checkpoints."""

from typing import NamedTuple, Protocol


class SavedCheckpoint(NamedTuple):
    """A checkpoint that the script has had written, complete."""

    step: int
    path: str


class Copying(Protocol):
    """What copies a state."""

    @property
    def next(self) -> int:
        """The step whose commit it waits for."""
        ...

    @property
    def keeps_own(self) -> bool:
        """Whether each rank can copy its own state."""
        ...

    def due(self, step: int) -> None:
        """This step, or a later one, is committed."""
        ...
