"""The epoch of a script that loops over `state.epochs()`.

Rules:

1. Each commit records it, as the data position. After a recovery the loop begins in the epoch of the last committed
   step. If that was the epoch's last step, no batch is left, and the code behind the loop over batches runs again.
2. A script that never requests epochs pays nothing for them.
"""

import sys
from collections.abc import Callable, Iterator

import msgspec

from taskd.adaptors.groups.sites import is_users


class Epochs:
    """Present epoch of a script.

    Attributes:
        now: the epoch, from 0.
        used: whether the script has requested its epochs.
        loop_ended: functions to call when a loop over a loader has ended within the loop over epochs.
        again: functions to call when another epoch than the first, or another pass over the data, begins.
        goes_on: called once when a loop over a loader resumes within its pass after a recovery; None outside of one.
    """

    def __init__(self) -> None:
        self.now = self._first = 0
        self.used = False
        self._loops = 0
        self.loop_ended: list[Callable[[], None]] = []
        self.again: list[Callable[[], None]] = []
        self.goes_on: Callable[[], None] | None = None
        self._frame = 0

    @property
    def loop(self) -> int:
        """The epoch, -1 outside of the loop."""
        return self.now if self._loops else -1

    def start_at(self, epoch: int) -> None:
        """Begin at `epoch`: the script has loaded a checkpoint of its own."""
        self.now = self._first = epoch

    def up_to(self, total: int, begin: Callable[[], None]) -> Iterator[int]:
        """Yield the epochs that are left of `total`. Call `begin` before the first epoch that is ever requested."""
        if not self.used:
            self.used = True
            begin()
        self._loops += 1
        try:
            while self.now < total:
                self._frame = id(sys._getframe(1))
                yield self.now
                self.now += 1
                self.begin_again()
        finally:
            self._loops -= 1

    def go_on(self) -> None:
        """Call `goes_on` if the function that loops over the epochs starts the loop over the loader itself.

        No code of a step has run then.
        """
        if self.goes_on is None or not self._loops:
            return
        frame = sys._getframe(1)
        while frame.f_back is not None and not is_users(frame.f_code.co_filename):
            frame = frame.f_back
        if id(frame) == self._frame:
            self.goes_on()

    def end_loop(self) -> None:
        """Report that a loop over a loader has ended."""
        for call in tuple(self.loop_ended):
            call()

    def begin_again(self) -> None:
        """Report that another epoch or pass begins."""
        for call in tuple(self.again):
            call()

    def pack(self) -> bytes:
        """Return the present epoch, encoded."""
        return msgspec.msgpack.encode(self.now)

    def unpack(self, data: bytes | None) -> None:
        """Go back to the recorded epoch; without a record, to the epoch that the script began with."""
        self.now = self._first if data is None else msgspec.msgpack.decode(data, type=int)
