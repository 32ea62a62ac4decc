"""Kinds of data loaders, by name, for tests of data positions: samplers, workers, streams."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    WeightedRandomSampler,
)
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

SAMPLES, BATCH = 20, 4
PER_EPOCH = SAMPLES // BATCH


class Samples(torch.utils.data.Dataset[Any]):
    """Samples with a number that is drawn again at each load, as augmentation does."""

    def __init__(self) -> None:
        self.loaded: list[int] = []

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[float, ...]:
        self.loaded.append(index)
        return index, torch.rand(1).item(), random.random(), float(np.random.rand())


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[tuple[float, ...]]:
        worker = torch.utils.data.get_worker_info()
        for index in range(SAMPLES) if worker is None else (range(12), range(12, SAMPLES))[worker.id]:
            yield index, 0.0 if worker is None else torch.rand(1).item(), 0.0, 0.0


class Fickle(Sampler[int]):
    """Sampler of the script's own that draws from every global generator whenever it is asked."""

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[int]:
        for _ in range(SAMPLES):
            yield (random.randrange(SAMPLES) + int(np.random.randint(SAMPLES)) + int(torch.randint(99, ()))) % SAMPLES


class Counting(Sampler[int]):
    """Sampler of the script's own whose order follows the number of its passes. `rank` does not count passes."""

    def __init__(self, where: str) -> None:
        self.where, self.rank, self.passes = where, 3, 0

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(self.passes % 1000)).tolist()
        if self.where == "first":
            self.passes += 1
        for number in order:
            self.passes += self.where == "always"
            yield number
        if self.where == "behind":
            self.passes += 1


class CountingEpochs(Counting):
    """Sampler that sets its own next epoch, as accelerate's do."""

    @property
    def passes(self) -> int:
        return self.epoch

    @passes.setter
    def passes(self, epoch: int) -> None:
        self.epoch = epoch


class Epochal(Counting):
    """Sampler whose epoch the script sets, under a name of its own."""

    def set_epoch(self, epoch: int) -> None:
        self.passes = epoch


class EpochalByName(CountingEpochs, Epochal):
    """The same sampler with the usual name."""


def plain(**more: Any) -> DataLoader[Any]:
    return DataLoader(Samples(), batch_size=BATCH, **more)


def stateful(**more: Any) -> Any:
    dataset: Any = range(SAMPLES)
    return StatefulDataLoader(dataset, batch_size=BATCH, shuffle=True, collate_fn=torch.tensor, **more)


KINDS: dict[str, Callable[[], DataLoader[Any]]] = {
    "plain": plain,
    "shuffle": lambda: plain(shuffle=True),
    "generator": lambda: plain(shuffle=True, generator=torch.Generator().manual_seed(7)),
    "distributed": lambda: plain(sampler=DistributedSampler(Samples(), 1, 0)),
    "stateful sampler": lambda: plain(sampler=StatefulDistributedSampler(range(SAMPLES), 1, 0)),
    "replacement": lambda: plain(sampler=RandomSampler(range(SAMPLES), replacement=True)),
    "weighted": lambda: plain(sampler=WeightedRandomSampler([1.0] * SAMPLES, SAMPLES)),
    "own sampler": lambda: plain(sampler=Fickle()),
    "counts passes": lambda: plain(sampler=Counting("first")),
    "counts behind a pass": lambda: plain(sampler=Counting("behind")),
    "counts samples": lambda: plain(sampler=Counting("always")),
    "counts epochs": lambda: plain(sampler=CountingEpochs("behind")),
    "own epochs": lambda: plain(sampler=EpochalByName("")),
    "own passes": lambda: plain(sampler=Epochal("")),
    "batch sampler": lambda: DataLoader(
        Samples(), batch_sampler=BatchSampler(RandomSampler(range(SAMPLES)), BATCH, False)
    ),
    "workers": lambda: plain(shuffle=True, num_workers=2),
    "persistent": lambda: plain(shuffle=True, num_workers=2, persistent_workers=True),
    "persistent with a generator": lambda: plain(
        shuffle=True, num_workers=2, persistent_workers=True, generator=torch.Generator().manual_seed(7)
    ),
    "iterable": lambda: DataLoader(Stream(), batch_size=BATCH),
    "torchdata": stateful,
    "torchdata with workers": lambda: stateful(num_workers=1),
    "iterable with workers": lambda: DataLoader(Stream(), batch_size=BATCH, num_workers=2),
}
