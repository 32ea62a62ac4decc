"""What each rank's trainer has for itself: the sum of its losses since the last log, and its floating-point operations.

Rules:

1. It is recorded with each commit, and, as far as it is known, ahead of it: a rank that dies while its peers commit the
   step is replaced by one that has its sum.
2. On a CPU the loss is known, and put down, before the backward pass: none of its gradients has left the rank then. On
   an accelerator that would have the host wait for it: it is put down where the trainer itself looks at it.
3. With it goes where the pass over the data was opened (see `loader`).
"""

import math
from collections.abc import Callable
from typing import Any

from taskd.adaptors.trainers.hf.loader import HfLoader


class HfOwn:
    """A `data` part of the training state.

    Args:
        trainer: whose.
        loader: of its training batches.
    """

    def __init__(self, trainer: Any, loader: HfLoader) -> None:
        self.record: Callable[[], None] = lambda: None
        self.loss: Any = None
        """Of the newest micro-batch."""
        self._trainer = trainer
        self._loader = loader
        self._sum = float(trainer._tr_loss)
        self._operations = float(trainer.current_flos)
        self._early = trainer._tr_loss.device.type == "cpu"

    def begin(self, operations: float) -> None:
        """A micro-batch begins, of so many operations."""
        self.loss = None
        self._operations = self._trainer.current_flos + operations

    def backward(self, loss: Any) -> None:
        """Its loss is known."""
        if self._early and self.loss is None:
            self._put_down(loss.detach())

    def end(self, loss: Any) -> None:
        """It has ended with this loss."""
        if self.loss is None:
            self._put_down(loss)
        self.loss = loss

    def logged(self) -> None:
        """The trainer has worked behind a commit: a log begins the sums anew."""
        if self._early:
            self._sum = float(self._trainer._tr_loss)
        elif self._trainer._globalstep_last_logged == self._trainer.state.global_step:
            self._sum -= self._sum
        self._operations = float(self._trainer.current_flos)

    def state_dict(self) -> dict[str, Any]:
        """As of the commit, or what it will be as far as that is known."""
        opened, loaded = self._loader.moments
        return {"sum": self._sum, "operations": self._operations, "opened": opened, "loaded": loaded}

    def load_state_dict(self, values: dict[str, Any]) -> None:
        """Put it back."""
        self._sum, self._operations = values["sum"], values["operations"]
        self._trainer._tr_loss.fill_(self._sum)
        self._trainer.current_flos = self._operations
        self._loader.recorded = (values["opened"], values["loaded"])

    def _put_down(self, loss: Any) -> None:
        trainer = self._trainer
        value = float(loss)
        if trainer.args.logging_nan_inf_filter and not math.isfinite(value):
            so_far = trainer._tr_loss / (1 + trainer.state.global_step - trainer._globalstep_last_logged)
            self._sum = float(trainer._tr_loss + so_far)
        else:
            self._sum = float(trainer._tr_loss + loss)
        self.loss = loss
        self.record()
