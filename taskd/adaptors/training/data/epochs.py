"""The epoch of a script that loops over `state.epochs()`.

Rules:

1. It is recorded with each commit, as the data position is. After a recovery the loop begins in the epoch of the last
   committed step; if that was its last step, there is nothing left to iterate over, and what follows is done again.
2. A script that never asks for epochs pays nothing for them.
"""

import sys
from collections.abc import Callable, Iterator

import msgspec

from taskd.adaptors.groups.sites import is_users


class Epochs:
    """Which epoch it is.

    Attributes:
        now: the epoch, from 0.
        used: whether the script has asked for its epochs.
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
        """The script has loaded a checkpoint of its own."""
        self.now = self._first = epoch

    def up_to(self, total: int, begin: Callable[[], None]) -> Iterator[int]:
        """The epochs that are left of so many; `begin` is called the first time that anybody asks."""
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
        """A loop over a loader has ended."""
        for call in tuple(self.loop_ended):
            call()

    def begin_again(self) -> None:
        """Another epoch or pass begins."""
        for call in tuple(self.again):
            call()

    def pack(self) -> bytes:
        """What is recorded."""
        return msgspec.msgpack.encode(self.now)

    def unpack(self, data: bytes | None) -> None:
        """Go back to what was recorded; without anything, to where the script began."""
        self.now = self._first if data is None else msgspec.msgpack.decode(data, type=int)
