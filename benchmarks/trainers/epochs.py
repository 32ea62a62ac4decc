"""Turns of a loop that a user writes: an epoch each, of a loop under taskd or of another one without it."""

from typing import Any, Protocol

import taskd
from benchmarks.trainers.work import Stopwatch, Turn


class EpochLoop(Protocol):
    """Training loop of a user."""

    def train(self, epochs: Any, state: Any) -> None:
        """Train for these epochs, and commit each step if there is a state."""
        ...


class EpochTurns:
    """Turns of one epoch each: of `ours`, whose state is `state`, or of `plain`."""

    def __init__(self, watch: Stopwatch, plain: EpochLoop, ours: EpochLoop, state: taskd.TrainState) -> None:
        self._watch, self._plain, self._ours, self._state = watch, plain, ours, state
        self._turns = 0

    def __call__(self, *, ours: bool) -> Turn:
        """Train for one turn, with taskd if `ours`."""
        turn, state = self._watch.begin(), self._state
        if ours:
            self._turns += 1  # the state counts its epochs over all turns
            taskd.resilient(state)(lambda: self._ours.train(state.epochs(self._turns), state))()
        else:
            self._plain.train(range(1), None)
        return turn
