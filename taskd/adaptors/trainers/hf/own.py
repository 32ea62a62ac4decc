"""What each rank's trainer has for itself: the sum of its losses since the last log, and its floating-point operations.

Rules:

1. It is recorded with each commit, and, as far as it is known, ahead of it: a rank that dies while its peers commit the
   step is replaced by one that has its sum.
2. On a CPU the loss is known, and put down, before the backward pass: none of its gradients has left the rank then. On
   an accelerator that would have the host wait for it: it is put down where the trainer itself looks at it.
3. With it goes where the pass over the data was opened (see `loader`): most of the bytes, which seldom change.
"""

import math
from collections.abc import Callable
from typing import Any

import msgspec

from taskd.adaptors.trainers.hf.loader import HfLoader
from taskd.adaptors.training.positions.packed import PackedPosition


class HfOwn(PackedPosition):
    """The numbers of `trainer`."""

    def __init__(self, trainer: Any) -> None:
        self.record: Callable[[], None] = lambda: None
        self.loss: Any = None
        """Of the newest micro-batch."""
        self._trainer = trainer
        self._sum = float(trainer._tr_loss)
        self._operations = float(trainer.current_flos)
        self._value: float | None = None
        self._early = trainer._tr_loss.device.type == "cpu"

    def begin(self, operations: float) -> None:
        """A micro-batch begins, of so many operations."""
        self.loss = self._value = None
        self._operations = self._trainer.current_flos + operations

    def backward(self, loss: Any) -> None:
        """Its loss is known."""
        if not self._early:
            self.record()
        elif self.loss is None:
            self._put_down(loss.detach())

    def end(self, loss: Any) -> None:
        """It has ended with this loss."""
        if self.loss is None:
            self._put_down(loss)
        self.loss = loss

    @property
    def known(self) -> Any:
        """The newest loss, as a number if it has been read."""
        return self.loss if self._value is None else self._value

    def logged(self) -> None:
        """The trainer has worked behind a commit: a log begins the sums anew."""
        if self._early:
            self._sum = float(self._trainer._tr_loss)
        elif self._trainer._globalstep_last_logged == self._trainer.state.global_step:
            self._sum -= self._sum
        self._operations = float(self._trainer.current_flos)

    def pack(self) -> bytes:
        """As of the commit, or what it will be as far as that is known."""
        return msgspec.msgpack.encode((self._sum, self._operations))

    def unpack(self, data: bytes) -> None:
        """Put it back."""
        self._sum, self._operations = msgspec.msgpack.decode(data, type=tuple[float, float])
        self._trainer._tr_loss.fill_(self._sum)
        self._trainer.current_flos = self._operations

    def _put_down(self, loss: Any) -> None:
        trainer = self._trainer
        self._value = value = float(loss)
        if trainer.args.logging_nan_inf_filter and not math.isfinite(value):
            so_far = trainer._tr_loss / (1 + trainer.state.global_step - trainer._globalstep_last_logged)
            self._sum = float(trainer._tr_loss + so_far)
        else:
            self._sum = float(trainer._tr_loss + loss)
        self.loss = loss
        self.record()


class HfMoments(PackedPosition):
    """The random numbers of the present pass over `loader`."""

    def __init__(self, loader: HfLoader) -> None:
        self._loader = loader
        self._moments = (b"", b"")
        self._packed = msgspec.msgpack.encode(self._moments)

    def pack(self) -> bytes:
        """Those that another process needs to go on with the pass."""
        moments = self._loader.moments
        if any(one is not known for one, known in zip(moments, self._moments, strict=True)):
            self._moments, self._packed = moments, msgspec.msgpack.encode(moments)
        return self._packed

    def unpack(self, data: bytes) -> None:
        """Those of another process."""
        self._loader.recorded = msgspec.msgpack.decode(data, type=tuple[bytes, bytes])
