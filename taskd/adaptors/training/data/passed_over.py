"""Skipping of the first batches of a torch data loader without loading them, in the loader's own order.

Rules:

1. An iterator that is made meanwhile draws the same numbers in the same order as without. Some samplers draw with their
   first index. It is requested after the iterator's own draws, as the loader's first batch would request it.
2. If the loader keeps its iterator for all passes, the next pass is a whole one.
3. Only the loader's class is changed for that moment: its own code may inspect its samplers, and finds them unchanged.
4. Batches of an iterable dataset can only be loaded and dropped. The same holds for an object that is no loader of
   torch's, or that has made none of torch's iterators when the body ends. Then nothing was passed over.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from taskd.adaptors.training.data.variants import become, variant


@contextmanager
def passed_over(loader: Any, count: int) -> "Iterator[list[PassedOver]]":
    """Place the iterator that the body makes of this loader behind its first `count` batches.

    Yield a list, which is empty afterwards if nothing was passed over: the caller then drops the batches.
    """
    made: list[PassedOver] = []
    if not count or not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        yield made
        return
    kind: Any = type(loader)

    def behind(self: Any) -> PassedOver:
        made.append(PassedOver(kind._index_sampler.fget(self), count))
        return made[-1]

    loader._iterator = None  # an iterator that the loader keeps from pass to pass has all indices
    become(loader, variant(kind, {"_index_sampler": property(behind)}))
    try:
        yield made
    finally:
        become(loader, kind)
    for one in made:
        one.pass_over()


class PassedOver:
    """Indices of a loader; in the first pass, without the first ones."""

    def __init__(self, indices: Any, count: int) -> None:
        self._indices = indices
        self._left = count
        self._iterator: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        self._iterator = iterator = iter(self._indices)
        return self._behind(iterator)

    def __len__(self) -> int:
        return len(self._indices)

    def pass_over(self) -> None:
        """Skip the first indices, unless that has been done."""
        while self._left and self._iterator is not None:
            self._left -= 1
            next(self._iterator, None)

    def _behind(self, iterator: Iterator[Any]) -> Iterator[Any]:
        self.pass_over()
        yield from iterator
