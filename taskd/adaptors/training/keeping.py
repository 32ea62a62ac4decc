"""Other places that keep a training state while the training function runs: copies in shared memory, checkpoints."""

from typing import NamedTuple, Protocol


class SavedCheckpoint(NamedTuple):
    """A complete checkpoint that the script has written through taskd."""

    step: int
    path: str


class Copying(Protocol):
    """An object that copies a state."""

    @property
    def next(self) -> int:
        """The step whose commit triggers the next copy."""
        ...

    @property
    def keeps_own(self) -> bool:
        """True if each rank can copy its own state."""
        ...

    def due(self, step: int) -> None:
        """Make the copy that is due, because this step was committed: the `next` one or a later one."""
        ...
