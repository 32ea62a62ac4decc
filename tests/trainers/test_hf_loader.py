"""The loader of transformers' Trainer: a training gets the same batches, undisturbed or resumed."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from taskd.adaptors.trainers.hf.loader import HfLoader
from taskd.adaptors.trainers.hf.own import HfMoments
from taskd.adaptors.training.positions.rng import PackedRng

ROWS, SIZE = 11, 2
BATCHES = -(-ROWS // SIZE)
Seen = list[tuple[Any, float]]


class Drawing(torch.utils.data.Dataset[Any]):
    """A dataset whose rows depend on the generators, and change them."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> list[float]:
        return [float(index), torch.rand(()).item(), random.random()]


class Stream(IterableDataset[Any]):
    """A dataset that has no indices, and draws nothing."""

    def __iter__(self) -> Iterator[float]:
        yield from map(float, range(ROWS))


class OneAhead:
    """Wraps a loader as accelerate's do, and holds one batch more than it has given."""

    def __init__(self, base: DataLoader[Any]) -> None:
        self.base_dataloader = base

    def __iter__(self) -> Iterator[Any]:
        inner = self.base_dataloader.__iter__()
        batch = next(inner, None)
        while batch is not None:
            following = next(inner, None)
            yield batch
            batch = following


def plain() -> Any:
    return DataLoader(Drawing(), batch_size=SIZE, shuffle=True)


def ahead() -> Any:
    return OneAhead(plain())


def stream() -> Any:
    return DataLoader(Stream(), batch_size=SIZE)


def never(_loader: Any, _count: int) -> Any:
    raise AssertionError("nothing is to be skipped by transformers")


def kept(make: Any) -> HfLoader:
    """Return the loader of a process that has just been set up."""
    torch.manual_seed(4)
    random.seed(4)
    loader = HfLoader(make(), PackedRng(), never)
    loader.begin(0)
    return loader


def train(batches: Iterator[Any], steps: int) -> Seen:
    """Return the batch of each step, and a random number that it draws."""
    return [(_numbers(next(batches)), torch.rand(()).item()) for _ in range(steps)]


def _numbers(batch: Any) -> Any:
    return batch.tolist() if isinstance(batch, torch.Tensor) else [one.tolist() for one in batch]


def undisturbed(make: Any) -> Seen:
    torch.manual_seed(4)
    random.seed(4)
    return train(iter(make()), BATCHES)


@pytest.mark.parametrize("make", [plain, ahead, stream])
def test_an_undisturbed_pass_is_that_of_the_loader(make: Any) -> None:
    assert train(iter(kept(make)), BATCHES) == undisturbed(make)


@pytest.mark.parametrize("make", [plain, ahead, stream])
@pytest.mark.parametrize("done", range(BATCHES))
@pytest.mark.parametrize("more", [0, 1])
def test_a_survivor_is_given_again_what_it_has_not_committed(make: Any, done: int, more: int) -> None:
    loader, randomness = kept(make), PackedRng()
    batches = iter(loader)
    seen = train(batches, done)
    loader.commit()
    committed = randomness.capture()
    train(batches, min(more, BATCHES - done))
    randomness.restore(committed)
    loader.go_on(0, done, 0)
    assert seen + train(iter(loader), BATCHES - done) == undisturbed(make)


@pytest.mark.parametrize("make", [plain, ahead, stream])
@pytest.mark.parametrize("done", range(BATCHES + 1))
def test_a_new_process_goes_on_behind_what_was_recorded(make: Any, done: int) -> None:
    loader, randomness = kept(make), PackedRng()
    seen = train(iter(loader), done)
    loader.commit()
    recorded, committed = loader.moments, randomness.capture()
    newcomer = kept(make)
    newcomer.recorded = recorded
    randomness.restore(committed)
    newcomer.go_on(0, done, 0)
    batches = iter(newcomer)
    assert seen + train(batches, BATCHES - done) == undisturbed(make)
    assert next(batches, None) is None


def test_a_step_that_was_committed_for_a_survivor_is_not_given_again() -> None:
    loader = kept(ahead)
    batches = iter(loader)
    seen = train(batches, 2)
    loader.commit()
    seen += train(batches, 1)  # its peers have committed this one
    loader.go_on(0, 3, 0)
    assert seen + train(iter(loader), BATCHES - 3) == undisturbed(ahead)


def test_an_iterator_of_another_epoch_is_not_gone_on_with() -> None:
    loader = kept(plain)
    train(iter(loader), BATCHES)
    loader.commit()
    recorded = loader.moments
    loader.begin(1)
    train(iter(loader), 3)
    loader.recorded = recorded
    loader.go_on(0, BATCHES, 0)
    assert next(iter(loader), None) is None


def test_what_the_training_takes_out_of_a_batch_is_there_when_it_is_given_again() -> None:
    batches = [{"labels": 1}, {"labels": 2}]
    loader = HfLoader(batches, PackedRng(), never)
    loader.begin(0)
    next(iter(loader)).pop("labels")
    loader.go_on(0, 0, 0)
    assert next(iter(loader)) == {"labels": 1}


def test_what_transformers_has_skipped_is_skipped_in_a_new_process_too() -> None:
    loader = HfLoader([*range(6)], PackedRng(), lambda whole, count: whole[count:])
    loader.begin(0)
    assert [*loader.skip(2)] == [2, 3, 4, 5]
    newcomer = HfLoader([*range(6)], PackedRng(), lambda whole, count: whole[count:])
    newcomer.go_on(0, 3, 2)
    assert [*newcomer] == [3, 4, 5]
    newcomer.begin(1)
    assert [*newcomer] == [*range(6)]


def test_random_numbers_are_kept_of_batches_that_drew_some() -> None:
    for make, drew in ((ahead, True), (stream, False)):
        loader = kept(make)
        train(iter(loader), 2)
        opened, loaded = loader.moments
        assert opened
        assert bool(loaded) is drew


def test_the_moments_of_a_pass_are_packed_anew_when_they_are_others() -> None:
    loader, newcomer = kept(ahead), kept(ahead)
    moments = HfMoments(loader)
    batches = iter(loader)
    train(batches, 1)
    packed = moments.pack()
    assert moments.pack() is packed
    train(batches, 1)
    assert moments.pack() != packed
    HfMoments(newcomer).unpack(moments.pack())
    assert newcomer.recorded == loader.moments
