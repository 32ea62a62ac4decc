"""Turns of a loop that a user writes: an epoch each, of a loop that taskd knows or of another that it does not."""

from typing import Any, Protocol

import taskd
from benchmarks.trainers.work import Stopwatch, Turn


class EpochLoop(Protocol):
    """A user's."""

    def train(self, epochs: Any, state: Any) -> None:
        """Train for these epochs, and commit each step if there is a state."""
        ...


class EpochTurns:
    """Each turn is an epoch: of `ours`, whose state that is, or of `plain`."""

    def __init__(self, watch: Stopwatch, plain: EpochLoop, ours: EpochLoop, state: taskd.TrainState) -> None:
        self._watch, self._plain, self._ours, self._state = watch, plain, ours, state
        self._turns = 0

    def __call__(self, *, ours: bool) -> Turn:
        """Train once; `ours` with taskd."""
        turn, state = self._watch.begin(), self._state
        if ours:
            self._turns += 1  # epochs are counted on
            taskd.resilient(state)(lambda: self._ours.train(state.epochs(self._turns), state))()
        else:
            self._plain.train(range(1), None)
        return turn
