"""Samplers and datasets of the script's that keep something from pass to pass go on as they would have."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler, TensorDataset

from taskd.adaptors.training.data.carried_attributes import CarriedAttributes
from taskd.adaptors.training.state import TrainState
from taskd.errors import RestoreError

ROWS, BATCH, EPOCHS = 20, 4, 4
PER_EPOCH = ROWS // BATCH


class Counting(Sampler[int]):
    """Another order in each pass, by a count of its own."""

    def __init__(self, rank: int = 0) -> None:
        self.passes, self.rank = 0, rank

    def __len__(self) -> int:
        return ROWS

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(self.passes)).tolist()
        return iter(order)


class Shuffling(Sampler[int]):
    """Shuffles the order of the pass before once more, in place; with generators of Python and numpy."""

    def __init__(self, *, by_numpy: bool = False) -> None:
        self.order = list(range(ROWS))
        self.rng: Any = np.random.default_rng(3) if by_numpy else random.Random(3)

    def __len__(self) -> int:
        return ROWS

    def __iter__(self) -> Iterator[int]:
        self.rng.shuffle(self.order)
        yield from self.order


class Binned(Sampler[list[int]]):
    """Batches, whose bins it fills anew with a legacy generator of numpy's; a table beside it."""

    def __init__(self) -> None:
        self.rng = np.random.RandomState(4)
        self.table = {"passes": 0, "sizes": [BATCH]}

    def __len__(self) -> int:
        return PER_EPOCH

    def __iter__(self) -> Iterator[list[int]]:
        self.table["passes"] += 1  # type: ignore[operator]
        order = self.rng.permutation(ROWS).tolist()
        yield from (order[at : at + BATCH] for at in range(0, ROWS, BATCH))


class Stream(IterableDataset[Any]):
    """Shuffles its rows once more in each pass, while it is read."""

    def __init__(self) -> None:
        self.numbers, self.rng, self.epoch = list(range(ROWS)), random.Random(7), 0

    def __iter__(self) -> Iterator[Any]:
        self.epoch += 1
        self.rng.shuffle(self.numbers)
        for number in self.numbers:
            yield torch.tensor([number, self.epoch])


ROWS_OF = TensorDataset(torch.arange(ROWS))
LOADERS: dict[str, Callable[[], Any]] = {
    "counting": lambda: DataLoader(ROWS_OF, BATCH, sampler=Counting()),
    "shuffling": lambda: DataLoader(ROWS_OF, BATCH, sampler=Shuffling()),
    "shuffling by numpy": lambda: DataLoader(ROWS_OF, BATCH, sampler=Shuffling(by_numpy=True)),
    "bins": lambda: DataLoader(ROWS_OF, batch_sampler=Binned()),
    "stream": lambda: DataLoader(Stream(), BATCH),
}


class Process:
    """A state whose loader is gone over, with what was seen."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.loader = make()
        model = torch.nn.Linear(1, 1)
        self.state = TrainState(
            model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), loader=self.loader, seed=1
        )
        self.seen: list[Any] = []
        self.committed: dict[str, bytes] = {}

    def train(self, steps: int) -> None:
        for epoch in self.state.epochs(EPOCHS):
            for batch in self.loader:
                if len(self.seen) == steps:
                    return  # the fault: this batch was handed out, and not committed
                self.seen.append((epoch, [one.tolist() for one in batch]))
                self.state.commit()
                self.committed = self.state._recovery.parts.pack_positions()


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("is_new", [False, True])
def test_passes_go_on(name: str, *, is_new: bool) -> None:
    whole = Process(LOADERS[name])
    whole.train(-1)
    assert len(whole.seen) == EPOCHS * PER_EPOCH
    for steps in range(1, EPOCHS * PER_EPOCH):
        process = Process(LOADERS[name])
        process.train(steps)
        before, committed = process.seen, process.committed
        if is_new:
            process = Process(LOADERS[name])
        process.state._recovery.parts.unpack_positions(committed)
        process.seen = []
        process.train(-1)
        assert before + process.seen == whole.seen, steps


def test_what_no_pass_changes_stays_the_ranks_own() -> None:
    """A peer lends its place in the data: its number in its sampler does not come with it."""
    donor = Process(lambda: DataLoader(ROWS_OF, BATCH, sampler=Counting(rank=0)))
    donor.train(PER_EPOCH + 2)
    own = Process(lambda: DataLoader(ROWS_OF, BATCH, sampler=Counting(rank=1)))
    own.state._recovery.parts.unpack_positions(donor.committed)
    own.train(1)
    assert (own.loader.sampler.passes, own.loader.sampler.rank) == (2, 1)


def test_lists_are_changed_in_place() -> None:
    sampler = Shuffling()
    carried, held = CarriedAttributes(lambda: [sampler]), sampler.order
    carried.begin()
    first = [*held]
    assert [*sampler] != first
    carried.put(carried.of_pass([]))
    assert sampler.order is held
    assert held == first


class Large(Counting):
    def __init__(self) -> None:
        super().__init__()
        self.text = "x" * 20_000


def test_a_large_object_is_left_alone() -> None:
    sampler = Large()
    carried = CarriedAttributes(lambda: [sampler])
    carried.begin()
    sampler.passes += 1
    carried.put(carried.of_pass([]))
    assert sampler.passes == 1
    assert not carried.names()


@pytest.mark.parametrize("data", [b"\xc1", b"\x81\xa6passes\xc4\x01\xc1"])
def test_a_damaged_record_is_an_error(data: bytes) -> None:
    sampler = Counting()
    with pytest.raises(RestoreError, match="what a Counting had kept of its passes cannot be put back"):
        CarriedAttributes(lambda: [sampler]).put([data])
