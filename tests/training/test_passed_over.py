"""First batches of a loader that are passed over: the rest, and the random numbers, equal those of a full pass."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, Sampler, TensorDataset

from taskd.adaptors.training.data.passed_over import passed_over

ROWS, SIZE, COUNT = 11, 2, 3
NUMBERS = TensorDataset(torch.arange(ROWS))
Make = Callable[[], DataLoader[Any]]


class Counting(Dataset[Any]):
    """Dataset that records its loaded rows."""

    def __init__(self) -> None:
        self.loaded: list[int] = []

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> torch.Tensor:
        self.loaded.append(index)
        return torch.tensor([index])


class Late(Sampler[int]):
    """Sampler that draws each index on request and reads nothing before."""

    def __iter__(self) -> Iterator[int]:
        yield from (int(torch.randint(ROWS, ())) for _ in range(ROWS))

    def __len__(self) -> int:
        return ROWS


class Stream(IterableDataset[Any]):
    """Stream without indices."""

    def __iter__(self) -> Iterator[Any]:
        return iter(torch.arange(ROWS).split(1))


class Lazy(DataLoader[Any]):
    """Loader that makes torch's iterator with the first batch."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        yield from super().__iter__()


def shuffled() -> DataLoader[Any]:
    return DataLoader(NUMBERS, batch_size=SIZE, shuffle=True)


def late() -> DataLoader[Any]:
    return DataLoader(NUMBERS, batch_size=SIZE, sampler=Late())


def single() -> DataLoader[Any]:
    return DataLoader(NUMBERS, batch_size=None, shuffle=True)


def own_generator() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(5)
    return DataLoader(NUMBERS, batch_size=SIZE, sampler=RandomSampler(NUMBERS, generator=generator))


def workers() -> DataLoader[Any]:
    return DataLoader(NUMBERS, batch_size=SIZE, shuffle=True, num_workers=1)


def kept_workers() -> DataLoader[Any]:
    return DataLoader(NUMBERS, batch_size=SIZE, shuffle=True, num_workers=1, persistent_workers=True)


MAKE = [shuffled, late, single, own_generator, workers, kept_workers]


def rest_of(batches: Iterator[Any]) -> list[Any]:
    return [(batch[0] if isinstance(batch, list | tuple) else batch).tolist() for batch in batches]


def passes(make: Make, *, passing: bool) -> tuple[list[Any], list[Any], torch.Tensor]:
    """Return the rest of the first pass, all of a second one, and a number that is drawn after them."""
    torch.manual_seed(3)
    loader = make()
    with passed_over(loader, COUNT if passing else 0) as passed:
        batches = iter(loader)
    assert bool(passed) is passing
    for _ in range(0 if passing else COUNT):
        next(batches)
    torch.manual_seed(4)  # random numbers may be restored in between
    return rest_of(batches), rest_of(iter(loader)), torch.rand(())


@pytest.mark.parametrize("make", MAKE)
def test_the_rest_of_a_pass_and_the_next_one_are_those_of_a_pass_that_loads_all(make: Make) -> None:
    assert passes(make, passing=True) == passes(make, passing=False)


@pytest.mark.parametrize("size", [SIZE, None])
def test_nothing_is_loaded_of_what_is_passed_over(size: int | None) -> None:
    rows = Counting()
    loader = DataLoader(rows, batch_size=size)
    kind, samplers = type(loader), (loader.sampler, loader.batch_sampler)
    with passed_over(loader, COUNT) as passed:
        batches = iter(loader)
        assert (loader.sampler, loader.batch_sampler) == samplers
    assert passed
    assert type(loader) is kind
    rest_of(batches)
    assert rows.loaded == [*range(COUNT * (size or 1), ROWS)]


def test_one_that_keeps_its_iterator_is_passed_over_in_a_later_pass_too() -> None:
    loader = DataLoader(NUMBERS, batch_size=SIZE, num_workers=1, persistent_workers=True)
    whole = rest_of(iter(loader))
    with passed_over(loader, COUNT):
        batches = iter(loader)
    assert rest_of(batches) == whole[COUNT:]
    assert rest_of(iter(loader)) == whole


def test_behind_the_end_there_is_nothing() -> None:
    loader = shuffled()
    with passed_over(loader, ROWS):
        batches = iter(loader)
    assert next(batches, None) is None


@pytest.mark.parametrize(
    "loader", [DataLoader(Stream(), batch_size=SIZE), [1, 2, 3, 4], Lazy(NUMBERS, batch_size=SIZE)]
)
def test_what_cannot_be_passed_over_is_told(loader: Any) -> None:
    with passed_over(loader, COUNT) as passed:
        batches = iter(loader)
    assert not passed
    assert len([*batches]) == len(loader if isinstance(loader, list) else [*loader])


def test_a_loader_is_itself_again_after_an_error() -> None:
    loader = shuffled()
    with pytest.raises(KeyError), passed_over(loader, COUNT):
        raise KeyError
    assert type(loader) is DataLoader
    assert len(rest_of(iter(loader))) == len(loader)
