"""The batches of the training, so that those of an interrupted step can be had again.

Rules:

1. A survivor keeps the batches that it was given since the last commit but one, and what they left of the random
   numbers: all may go back to either. They are given again, and its loader goes on, with what that has loaded ahead.
2. A new process begins the same pass over the data, with the random numbers with which that was begun, behind the
   batches that were handed out. They are not loaded where one loader of torch's has indices to skip; else they are
   loaded and dropped. What a dataset draws in worker processes is then not what it would have drawn.
3. A pass that began after the commit is begun anew: Lightning asks for it again.
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
    """What was handed out of the present pass.

    Attributes:
        number: which pass of this process.
        count: of batches.
        start: the state of torch's generator as it began.
        epochs: those of the samplers as it began, -1 for none.
        kept: batches by their numbers since the last commit but one, what came with them, and what random numbers they
            left, if they may have drawn any.
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
        """A pass is about to begin."""
        self.number = next(_PASSES)
        self.count = self.committed = 0
        self.kept, self.again = {}, deque()
        self._mark = b""  # a pass that is begun anew draws the same again
        self.start = tree.bytes_of(torch.default_generator.get_state())
        self.epochs = [getattr(sampler_of(loader), "epoch", -1) for loader in loaders]

    def drawn(self) -> bytes | None:
        """All random numbers, if any were drawn since the last call: then a batch may have drawn them."""
        mark = self.random.mark()
        if mark == self._mark:
            return None
        self._mark = mark
        return self.random.capture()


def sampler_of(loader: Any) -> Any:
    """The sampler that has an epoch; None if there is none."""
    found = (getattr(loader, "sampler", None), getattr(getattr(loader, "batch_sampler", None), "sampler", None))
    return next((one for one in found if callable(getattr(one, "set_epoch", None))), None)


@cache
def kept(kind: Any) -> Any:
    """Lightning's fetcher of batches, `kind`, as one that keeps them."""
    own = {name: value for name, value in vars(Keeping).items() if callable(value)}
    return type(
        kind.__name__, (kind,), {**own, "taskd_kind": kind}
    )  # of the same layout, so that one becomes the other


class Keeping:
    """What a fetcher of Lightning's has instead of its own, or besides."""

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
        """Where it stands: for this rank's next process."""
        handed = self.taskd
        return [handed.count, self.fetched, self.done]

    def taskd_beginning(self) -> list[Any]:
        """How its pass began: for this rank's next process."""
        return [self.taskd.start, self.taskd.epochs]

    def taskd_mark(self) -> tuple[int, int, int, bool]:
        """Where it stands, at a commit: what was handed out before is not asked for again."""
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
        """Begin the pass that another process was in, and go where it stood; return its last batch if wanted.

        `place` and how the pass began, in one.
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
