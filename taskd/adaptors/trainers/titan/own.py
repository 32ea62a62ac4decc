"""The own state of one rank of torchtitan: its place in the data, and the numbers for the present step's log."""

from typing import Any

from taskd.adaptors.training import tree


class TitanOwn:
    """A part of a training state that is each rank's own.

    Args:
        trainer: torchtitan's.

    Attributes:
        start: the step with which this training started: until the next commit no iterator had been made.
        loss: of the present step, as far as it is known: this rank's share of the global mean. Read only in steps that
            are logged: to read it is to wait for the device.
        tokens: that count in this rank's batches of the step.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._loader: tuple[int, bytes] = (-1, b"")
        self.loss = 0.0
        self.tokens = self.start = 0

    def begin(self) -> None:
        """Reset the numbers at the start of a step."""
        self.loss, self.tokens = 0.0, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the present state."""
        seen = self._trainer.ntokens_seen
        if self._loader[0] != seen:  # a loader's state takes long to write, and a step requests it twice
            self._loader = seen, tree.pack(self._trainer.dataloader.state_dict())
        return {
            "loader": self._loader[1],
            "seen": seen,
            "start": self.start,
            "loss": self.loss,
            "tokens": self.tokens,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to that state."""
        trainer = self._trainer
        trainer.ntokens_seen = state["seen"]
        trainer.dataloader.load_state_dict(tree.unpack(state["loader"]))
        self._loader = (-1, b"")
        self.start, self.loss, self.tokens = state["start"], state["loss"], state["tokens"]


class TitanShared:
    """Numbers with which all ranks log a step: a part that is equal on them.

    Attributes:
        tokens: that count in the batches of all.
        gradient_norm: before clipping.
        rate: that the step was done with.
    """

    def __init__(self) -> None:
        self.tokens = self.gradient_norm = self.rate = 0.0

    def state_dict(self) -> dict[str, float]:
        """Return the numbers of the last step that was done."""
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Take over the numbers of a peer."""
        vars(self).update(state)
