"""The first batches of a torch data loader passed over without loading them, in the order that the loader has.

Rules:

1. An iterator that is made meanwhile draws what it would draw, in the same order: some samplers draw with their first
   index, and that is asked for behind what the iterator itself draws, as the loader's first batch would ask for it.
2. Its next pass, of a loader that keeps its iterator for all passes, is a whole one.
3. What is changed for that moment is the loader's class: its samplers stay what its own code may look at.
4. Batches of an iterable dataset can only be loaded and dropped, as can those of anything that is no loader of torch's,
   or has made none of torch's iterators yet as the body ends: then nothing was passed over.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from taskd.adaptors.training.data.variants import become, variant


@contextmanager
def passed_over(loader: Any, count: int) -> "Iterator[list[PassedOver]]":
    """The iterator that the body makes of this loader stands behind so many batches afterwards.

    What it is given is empty afterwards if it does not: the caller then drops them.
    """
    made: list[PassedOver] = []
    if not count or not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        yield made
        return
    kind: Any = type(loader)

    def behind(self: Any) -> PassedOver:
        made.append(PassedOver(kind._index_sampler.fget(self), count))
        return made[-1]

    loader._iterator = None  # one that stays from pass to pass has whole indices
    become(loader, variant(kind, {"_index_sampler": property(behind)}))
    try:
        yield made
    finally:
        become(loader, kind)
    for one in made:
        one.pass_over()


class PassedOver:
    """Indices without the first ones, in the first pass."""

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
        """Now at the latest."""
        while self._left and self._iterator is not None:
            self._left -= 1
            next(self._iterator, None)

    def _behind(self, iterator: Iterator[Any]) -> Iterator[Any]:
        self.pass_over()
        yield from iterator
