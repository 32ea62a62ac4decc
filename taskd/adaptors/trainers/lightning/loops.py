"""The counters of Lightning's loops: how many batches, steps and epochs were started and done.

They are numbers, names and flags of the loop objects and of the progress objects in them, found once: Lightning changes
them in place. They are equal on all ranks. A value that is None at first becomes an object later, and is none of them.
"""

from collections.abc import Iterator
from operator import itemgetter
from typing import Any, Final

_PLAIN: Final = (bool, int, float, str)
_LEFT_OUT: Final = frozenset({"trainer"})
Counts = list[Any]


class LoopCounters:
    """The counters of `loop` and of the loops in it. `kinds` are the classes of loops and of progress objects."""

    def __init__(self, loop: Any, kinds: tuple[type, ...]) -> None:
        self._owners = [vars(one) for one in _within(loop, kinds)]
        self._names = [tuple(name for name, value in own.items() if type(value) in _PLAIN) for own in self._owners]
        self._get = [itemgetter(*names) if len(names) > 1 else None for names in self._names]

    def take(self) -> Counts:
        """Return the present counters."""
        pairs = zip(self._owners, self._names, self._get, strict=True)
        return [[own[name] for name in names] if get is None else get(own) for own, names, get in pairs]

    def put(self, taken: Counts) -> None:
        """Set the counters back to these."""
        for own, names, values in zip(self._owners, self._names, taken, strict=True):
            own.update(zip(names, values, strict=True))


def complete_step(epochs: Any) -> None:
    """Count the optimizers' step of the loop over an epoch as done."""
    automatic, manual = epochs.automatic_optimization, epochs.manual_optimization
    for one in (automatic.optim_progress.optimizer.step, manual.optim_step_progress):
        for counts in (one.total, one.current):
            counts.completed = counts.ready


def _within(owner: Any, kinds: tuple[type, ...]) -> Iterator[Any]:
    yield owner
    for name, value in vars(owner).items():
        if isinstance(value, kinds) and name not in _LEFT_OUT:
            yield from _within(value, kinds)
