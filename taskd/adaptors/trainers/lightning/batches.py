"""The batches of the training, kept to be given again after an interrupted step.

Rules:

1. A survivor keeps the batches that it was given since the last commit but one, and the random numbers after them: all
   may go back to either commit. The batches are given again. The survivor's loader goes on, with the batches that it
   has loaded ahead.
2. A new process starts the same pass over the data, with the random numbers of that pass's start, behind the batches
   that were handed out. They are not loaded if one loader of torch's has indices to skip; else they are loaded and
   dropped. A dataset that draws in worker processes then draws other numbers.
3. A pass that started after the commit is started anew: Lightning requests it again.
"""

import itertools
from collections import deque
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from taskd.adaptors.training import tree
from taskd.adaptors.training.data.passed_over import passed_over
from taskd.adaptors.training.positions.rng import PackedRng

_Item = tuple[Any, int, bool, bytes | None]
_PASSES = itertools.count(1)


class Handed:
    """The batches handed out in the present pass.

    Attributes:
        number: number of the pass in this process.
        count: of batches.
        start: the state of torch's generator at the pass's start.
        epochs: those of the samplers at the pass's start, -1 for none.
        kept: batches by their numbers since the last commit but one, each with its place. The random numbers after it
            are with it, if it may have drawn any.
        committed: how many were handed out by the last commit.
        again: those to be handed out again.
        random: all random numbers of this process.
    """

    def __init__(self) -> None:
        self.number = self.count = 0
        self.start = b""
        self.epochs: list[int] = []
        self.kept: dict[int, _Item] = {}
        self.committed = 0
        self.again: deque[_Item] = deque()
        self.random = PackedRng()
        self._mark = b""

    def begin(self, loaders: Sequence[Any]) -> None:
        """Record a pass that is about to start."""
        self.number = next(_PASSES)
        self.count = self.committed = 0
        self.kept, self.again = {}, deque()
        self._mark = b""  # a pass that is started anew draws the same again
        self.start = tree.bytes_of(torch.default_generator.get_state())
        self.epochs = [getattr(sampler_of(loader), "epoch", -1) for loader in loaders]

    def drawn(self) -> bytes | None:
        """Return all random numbers if any were drawn since the last call, perhaps by a batch; else None."""
        mark = self.random.mark()
        if mark == self._mark:
            return None
        self._mark = mark
        return self.random.capture()


def sampler_of(loader: Any) -> Any:
    """Return the sampler that has an epoch; None if there is none."""
    found = (getattr(loader, "sampler", None), getattr(getattr(loader, "batch_sampler", None), "sampler", None))
    return next((one for one in found if callable(getattr(one, "set_epoch", None))), None)


@cache
def kept(kind: Any) -> Any:
    """Return Lightning's fetcher class `kind` as one that keeps its batches."""
    own = {name: value for name, value in vars(Keeping).items() if callable(value)}
    return type(
        kind.__name__, (kind,), {**own, "taskd_kind": kind}
    )  # the same layout, so an object of one class can become one of the other


class Keeping:
    """The methods and attributes that a fetcher of Lightning's gets, instead of its own or besides."""

    taskd: Handed
    taskd_kind: Any
    combined_loader: Any
    fetched: int
    done: bool

    def __iter__(self) -> Any:
        self.taskd.begin(self.combined_loader.flattened)
        return self.taskd_kind.__iter__(self)

    def __next__(self) -> Any:
        handed = self.taskd
        if handed.again:
            item = handed.again.popleft()
            batch, self.fetched, self.done, states = item
            if states is not None:
                handed.random.restore(states)
        else:
            batch = self.taskd_kind.__next__(self)
            item = (batch, self.fetched, self.done, handed.drawn())
        handed.count += 1
        handed.kept[handed.count] = item
        return batch

    def taskd_place(self) -> list[Any]:
        """Return the present place, for this rank's next process."""
        handed = self.taskd
        return [handed.count, self.fetched, self.done]

    def taskd_beginning(self) -> list[Any]:
        """Return the start of the present pass, for this rank's next process."""
        return [self.taskd.start, self.taskd.epochs]

    def taskd_mark(self) -> tuple[int, int, int, bool]:
        """Return the present place, at a commit, and drop the batches up to the previous commit.

        They will not be requested again.
        """
        handed = self.taskd
        for number in [number for number in handed.kept if number <= handed.committed]:
            del handed.kept[number]
        handed.committed = handed.count
        return handed.number, handed.count, self.fetched, self.done

    def taskd_return(self, mark: tuple[int, int, int, bool]) -> None:
        """Go back to such a place."""
        number, count, self.fetched, self.done = mark
        handed = self.taskd
        if number == handed.number:
            later = [one for one in handed.kept if one > count]
            handed.again.extendleft(handed.kept.pop(one) for one in sorted(later, reverse=True))
            handed.count = handed.committed = count
        else:
            handed.again.clear()

    def taskd_go_to(self, place: Sequence[Any], *, wants_last: bool) -> Any:
        """Start the pass that another process was in, and go to its place; return its last batch if wanted.

        `place` is that process's place and its pass's start, in one.
        """
        count, fetched, done, start, epochs = place
        loaders = self.combined_loader.flattened
        for loader, epoch in zip(loaders, epochs, strict=False):
            if epoch >= 0 and sampler_of(loader) is not None:
                sampler_of(loader).set_epoch(epoch)
        torch.default_generator.set_state(torch.frombuffer(bytearray(start), dtype=torch.uint8))
        behind = max(0, count - wants_last)
        with passed_over(loaders[0] if len(loaders) == 1 else None, behind) as passed:
            iter(self)
        last = None
        for _ in range(count - behind if passed else count):
            last = next(self)
        self.fetched, self.done = fetched, done
        self.taskd.count = self.taskd.committed = count
        self.taskd.kept.clear()
        return last
