"""Counts of a loader's batches continue after a recovery: in the interrupted process, and in a new one."""

import gc
import itertools
import os
import weakref
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from taskd.adaptors.training.proof.reading import go_on_as_before, read_function
from taskd.adaptors.training.state import TrainState
from taskd.errors import RefusedError

EPOCHS, BATCHES = 3, 10
NOTHING: Any = ((), {})
Seen = list[Any]


class tqdm:  # noqa: N801 - the library's name
    """Progress bar that requests its loader's iterator with the first batch."""

    def __init__(self, over: Any) -> None:
        self._over = over

    def __iter__(self) -> Iterator[Any]:
        yield from self._over


class Cut(Exception):  # noqa: N818 - it stands for a fault
    """Fault."""


class Job:
    """One process: a state, and the values that its training function has seen."""

    def __init__(self) -> None:
        model = torch.nn.Linear(1, 1)
        rows = TensorDataset(torch.arange(BATCHES * 2.0))
        self.sampler: DistributedSampler[Any] = DistributedSampler(rows, num_replicas=1, rank=0, seed=5)
        self.loader: Any = DataLoader(rows, batch_size=2, sampler=self.sampler)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.state = TrainState(model=model, optimizer=self.optimizer, loader=self.loader, seed=1)
        self.seen: Seen = []
        self.cut_at = -1
        self.committed: dict[str, bytes] = {}

    def step(self, epoch: int, number: object, batch: Any) -> None:
        self.optimizer.param_groups[0]["lr"] = 0.1 if number is None else number
        self.seen.append((epoch, number, batch[0].tolist()))
        if len(self.seen) > self.cut_at >= 0:
            raise Cut
        self.committed = self.state._recovery.parts.pack_positions()

    def go_back(self, committed: dict[str, bytes]) -> None:
        self.state._recovery.parts.unpack_positions(committed)


def numbered(job: Job) -> Callable[[], None]:
    state, loader, sampler, optimizer = job.state, job.loader, job.sampler, job.optimizer

    def train() -> None:
        for epoch in state.epochs(EPOCHS):
            sampler.set_epoch(epoch)
            for i, batch in enumerate(loader):
                optimizer.param_groups[0]["lr"] = i
                job.step(epoch, i, batch)
                state.commit()

    return train


def numbered_from_one(job: Job) -> Callable[[], None]:
    state, loader, sampler, optimizer = job.state, job.loader, job.sampler, job.optimizer

    def train() -> None:
        for epoch in state.epochs(EPOCHS):
            sampler.set_epoch(epoch)
            for i, batch in enumerate(
                loader,
                start=1,
            ):
                optimizer.param_groups[0]["lr"] = i
                job.step(epoch, i, batch)
                state.commit()

    return train


def with_a_bar(job: Job) -> Callable[[], None]:
    state, loader, sampler, optimizer = job.state, job.loader, job.sampler, job.optimizer

    def train() -> None:
        for epoch in state.epochs(EPOCHS):
            sampler.set_epoch(epoch)
            for i, batch in enumerate(tqdm(loader), 1):
                optimizer.param_groups[0]["lr"] = i
                job.step(epoch, i, batch)
                state.commit()

    return train


def in_a_function(job: Job) -> Callable[[], None]:
    state, loader, sampler, optimizer = job.state, job.loader, job.sampler, job.optimizer

    def pass_over(data: Any, epoch: int) -> None:
        for i, batch in tqdm(enumerate(data)):
            optimizer.param_groups[0]["lr"] = i
            job.step(epoch, i, batch)
            state.commit()

    def train() -> None:
        for epoch in state.epochs(EPOCHS):
            sampler.set_epoch(epoch)
            pass_over(loader, epoch)

    return train


def left_early(job: Job) -> Callable[[], None]:
    state, loader, sampler = job.state, job.loader, job.sampler

    def train() -> None:
        for epoch in state.epochs(EPOCHS):
            sampler.set_epoch(epoch)
            for i, batch in enumerate(loader):
                if i == BATCHES - 4:
                    break
                job.step(epoch, None, batch)
                state.commit()

    return train


def a_slice(job: Job) -> Callable[[], None]:
    state, loader, sampler = job.state, job.loader, job.sampler

    def train() -> None:
        for epoch in state.epochs(EPOCHS):
            sampler.set_epoch(epoch)
            for batch in islice(loader, BATCHES - 4):
                job.step(epoch, None, batch)
                state.commit()

    return train


def beside_a_range(job: Job) -> Callable[[], None]:
    state, loader, sampler, optimizer = job.state, job.loader, job.sampler, job.optimizer

    def train() -> None:
        for epoch in state.epochs(EPOCHS):
            sampler.set_epoch(epoch)
            for i, batch in zip(range(3, BATCHES - 1), loader):  # noqa: B905 - as people write it
                optimizer.param_groups[0]["lr"] = i
                job.step(epoch, i, batch)
                state.commit()

    return train


SHAPES = [numbered, numbered_from_one, with_a_bar, in_a_function, left_early, a_slice, beside_a_range]


def undisturbed(make: Callable[[Job], Callable[[], None]]) -> Seen:
    job = Job()
    make(job)()
    return job.seen


@pytest.mark.parametrize("make", SHAPES)
@pytest.mark.parametrize("is_new", [False, True])
def test_counts_go_on(make: Callable[[Job], Callable[[], None]], *, is_new: bool) -> None:
    """The fault comes in each of its steps. The step is done again, in this process or in another one."""
    expected = undisturbed(make)
    for cut_at in range(1, len(expected)):
        job = Job()
        job.cut_at = cut_at
        train = make(job)
        assert read_function(train, NOTHING, job.state) == []
        with pytest.raises(Cut):
            train()
        before, committed = job.seen[:-1], job.committed
        if is_new:
            job = Job()
            train = make(job)
        job.go_back(committed)
        if is_new:
            go_on_as_before(train, NOTHING, job.state)
        job.seen, job.cut_at = [], -1
        train()
        assert before + job.seen == expected, cut_at


def test_other_calls_are_pythons_own() -> None:
    """Other calls of the same function, and of other functions of the module, are unchanged."""
    job = Job()
    state, loader = job.state, job.loader
    kinds: list[Any] = []

    def train() -> None:
        kinds.append([*zip(enumerate([7]), islice([8], 1), strict=True)])
        for i, batch in enumerate(loader):
            job.step(0, i, batch)
            job.optimizer.param_groups[0]["lr"] = i
            state.commit()
            kinds.append(type(enumerate([])))

    assert read_function(train, NOTHING, state) == []
    assert "_taskd_counted_enumerate" in train.__code__.co_names
    train()
    assert kinds[0] == [((0, 7), 8)]
    assert kinds[1] is enumerate
    assert "_taskd_counted_enumerate" not in numbered.__code__.co_names


def no_limit(job: Job) -> Callable[[], None]:
    state, loader, sampler = job.state, job.loader, job.sampler

    def train() -> None:
        limit = int(os.environ["TEST_LIMIT"]) if "TEST_LIMIT" in os.environ else None
        for epoch in state.epochs(EPOCHS):
            sampler.set_epoch(epoch)
            for batch in islice(loader, limit):
                job.step(epoch, None, batch)
                state.commit()

    return train


def test_a_slice_without_a_limit() -> None:
    job = Job()
    train = no_limit(job)
    read_function(train, NOTHING, job.state)
    assert "_taskd_counted_islice" in train.__code__.co_names
    train()
    assert len(job.seen) == EPOCHS * BATCHES


def test_a_first_batch_is_let_go_of() -> None:
    """With a progress bar the count starts with the first batch. That batch is not held for the rest of the pass."""
    job = Job()
    state, loader, optimizer = job.state, job.loader, job.optimizer
    firsts: list[Any] = []

    def train() -> None:
        for i, batch in enumerate(tqdm(loader)):
            optimizer.param_groups[0]["lr"] = i
            firsts.append(weakref.ref(batch[0]))
            del batch
            state.commit()
            if i == 1:
                gc.collect()
                assert firsts[0]() is None

    assert read_function(train, NOTHING, state) == []
    train()
    assert len(firsts) == BATCHES


def test_a_function_that_asks_for_the_class_is_left_alone() -> None:
    job = Job()
    state, loader = job.state, job.loader

    def train() -> None:
        for i, batch in enumerate(loader):
            job.step(0, i, batch)
            job.optimizer.param_groups[0]["lr"] = i
            state.commit()
            assert not isinstance(batch, enumerate)

    (found,) = read_function(train, NOTHING, state)
    assert "counts the batches" in found.text
    train()


@pytest.mark.parametrize("counts", [False, True])
def test_a_record_says_whether_counts_go_on(*, counts: bool) -> None:
    job, other = Job(), Job()
    if counts:
        read_function(numbered(job), NOTHING, job.state)
    other.go_back(job.state._recovery.parts.pack_positions())
    assert other.state._recovery.parts.places["loader"].is_mended is counts  # type: ignore[union-attr]


def test_a_process_that_has_no_record_reads_by_itself() -> None:
    """Its predecessor died with its node before the first commit."""
    job = Job()
    job.state._recovery.declare_empty()
    assert job.state._recovery.stands_at_set_up
    train = numbered(job)
    go_on_as_before(train, NOTHING, job.state, must_mend=False)
    assert "_taskd_counted_enumerate" in train.__code__.co_names
    assert job.state._recovery.parts.places["loader"].is_mended  # type: ignore[union-attr]


def test_a_new_process_that_does_not_find_the_calls_is_refused() -> None:
    job = Job()
    state = job.state

    def train() -> None:
        for _ in state.epochs(EPOCHS):
            state.commit()

    with pytest.raises(RefusedError, match="does not find in the script the counts or names that others go on with"):
        go_on_as_before(train, NOTHING, state)


def test_an_attribute_of_that_name_stays() -> None:
    """`co_names` has one entry for both."""
    job = Job()
    state, loader = job.state, job.loader

    def train() -> None:
        for i, batch in enumerate(loader):
            job.step(0, i, batch)
            job.optimizer.param_groups[0]["lr"] = i
            state.commit()
            itertools.enumerate  # type: ignore[attr-defined]  # noqa: B018

    def within() -> None:
        def inner() -> None:
            itertools.enumerate  # type: ignore[attr-defined]  # noqa: B018

        for i, batch in enumerate(loader):
            job.step(0, i, batch)
            job.optimizer.param_groups[0]["lr"] = i
            state.commit()
            inner()

    for function in (train, within):
        (found,) = read_function(function, NOTHING, state)
        assert "counts the batches" in found.text
