"""The own state of each rank's trainer: the sum of its losses since the last log, and its floating-point operations.

Rules:

1. It is recorded with each commit, and ahead of it as far as it is known. So if a rank dies while its peers commit the
   step, its replacement has its sum.
2. On a CPU the loss is known and recorded before the backward pass: none of its gradients has left the rank then. On an
   accelerator the host would have to wait for the loss. It is recorded there when the trainer itself reads it.
3. The random numbers at the pass's opening go with it (see `loader`). They are most of the bytes, and seldom change.
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
        """Loss of the newest micro-batch."""
        self._trainer = trainer
        self._sum = float(trainer._tr_loss)
        self._operations = float(trainer.current_flos)
        self._value: float | None = None
        self._early = trainer._tr_loss.device.type == "cpu"

    def begin(self, operations: float) -> None:
        """Start a micro-batch of so many operations."""
        self.loss = self._value = None
        self._operations = self._trainer.current_flos + operations

    def backward(self, loss: Any) -> None:
        """Record the loss of the micro-batch, which is known now."""
        if not self._early:
            self.record()
        elif self.loss is None:
            self._put_down(loss.detach())

    def end(self, loss: Any) -> None:
        """End the micro-batch with this loss."""
        if self.loss is None:
            self._put_down(loss)
        self.loss = loss

    @property
    def known(self) -> Any:
        """Newest loss, as a number if it has been read."""
        return self.loss if self._value is None else self._value

    def logged(self) -> None:
        """Record that the trainer has worked behind a commit: a log starts the sums anew."""
        if self._early:
            self._sum = float(self._trainer._tr_loss)
        elif self._trainer._globalstep_last_logged == self._trainer.state.global_step:
            self._sum -= self._sum
        self._operations = float(self._trainer.current_flos)

    def pack(self) -> bytes:
        """Return the numbers at the commit, or those at the next one as far as they are known."""
        return msgspec.msgpack.encode((self._sum, self._operations))

    def unpack(self, data: bytes) -> None:
        """Put the numbers back."""
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
        """Return the numbers that another process needs to go on with the pass."""
        moments = self._loader.moments
        if any(one is not known for one, known in zip(moments, self._moments, strict=True)):
            self._moments, self._packed = moments, msgspec.msgpack.encode(moments)
        return self._packed

    def unpack(self, data: bytes) -> None:
        """Take over the numbers of another process."""
        self._loader.recorded = msgspec.msgpack.decode(data, type=tuple[bytes, bytes])
