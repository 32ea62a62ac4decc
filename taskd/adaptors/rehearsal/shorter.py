"""Shorter loaders for a rehearsal, so epochs end within the rehearsed steps.

Rules:

1. Each run of a rehearsal has the same ones, so they are compared as they are.
2. The number of batches keeps its remainder modulo 12. So a script with several batches a step leaves as many of them
   over at an epoch's end as before.
3. Only torch's own loaders that are a part of the state are shortened, over a dataset with indices.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from torch.utils.data import IterableDataset, Sampler

from taskd.adaptors.training.data.places import LoaderPlace
from taskd.adaptors.training.parts.parts import Parts

_LEAST: Final = 8
_REST_BY: Final = 12


class ShortBatches(Sampler[Any]):
    """The first `count` batches of a batch sampler."""

    def __init__(self, sampler: Any, count: int) -> None:
        self.sampler, self._count = sampler, count

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self.sampler), self._count)

    def __len__(self) -> int:
        return self._count

    def __getattr__(self, name: str) -> Any:
        if name == "sampler":
            raise AttributeError(name)
        return getattr(self.sampler, name)


def shorten(parts: Parts) -> list[str]:
    """Shorten the long loaders; return a sentence for each."""
    told = []
    for name, loader in parts.positions.items():
        if not isinstance(parts.places.get(name), LoaderPlace) or hasattr(loader, "base_dataloader"):
            continue
        if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
            continue
        total = len(loader)
        count = _LEAST + (total - _LEAST) % _REST_BY
        if count < total:
            loader.__dict__["batch_sampler"] = ShortBatches(loader.batch_sampler, count)
            told.append(f"{name!r} was shortened from {total} batches to {count}, so that epochs end here")
    return told
