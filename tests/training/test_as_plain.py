"""A loader whose position is kept as without taskd: a training gets the same data, undisturbed or resumed."""

import itertools
import random
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from taskd.adaptors.training import tree
from taskd.adaptors.training.data.as_plain import PlainPlace
from taskd.adaptors.training.data.epochs import Epochs
from taskd.adaptors.training.positions.rng import RngCapture

ROWS, SIZE, EPOCHS = 11, 2, 3
BATCHES = -(-ROWS // SIZE)
Position = tuple[list[bytes], bytes, bytes]


class Drawing(torch.utils.data.Dataset[Any]):
    """Augmented rows: a row depends on both generators and advances them."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> list[float]:
        return [float(index), torch.rand(()).item(), random.random()]


class DrawingAtTimes(Drawing):
    """Dataset in which some rows draw nothing."""

    def __getitem__(self, index: int) -> list[float]:
        return super().__getitem__(index) if index % 5 == 0 else [float(index), 0.0, 0.0]


class Stream(IterableDataset[Any]):
    """Stream without indices."""

    def __iter__(self) -> Iterator[float]:
        yield from map(float, range(ROWS))


class Ahead(DataLoader[Any]):
    """Loader that loads one batch or more ahead of the current one, as accelerate's does."""

    most = 1

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        inner = super().__iter__()
        held = deque(itertools.islice(inner, self.most))
        while held:
            held.extend(itertools.islice(inner, 1))
            yield held.popleft()


def plain() -> DataLoader[Any]:
    return DataLoader(Drawing(), batch_size=SIZE, shuffle=True)


def ahead() -> DataLoader[Any]:
    return Ahead(Drawing(), batch_size=SIZE, shuffle=True)


def at_times() -> DataLoader[Any]:
    loader = Ahead(DrawingAtTimes(), batch_size=SIZE, shuffle=True)
    loader.most = 2
    return loader


def own_generator() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(5)
    rows = TensorDataset(torch.arange(ROWS))
    return DataLoader(rows, batch_size=SIZE, sampler=RandomSampler(rows, generator=generator))


def distributed() -> DataLoader[Any]:
    """Return a loader whose sampler, torchdata's, reports only where its last pass has ended."""
    rows = TensorDataset(torch.arange(ROWS))
    return DataLoader(rows, batch_size=SIZE, sampler=StatefulDistributedSampler(rows, num_replicas=1, rank=0))


def workers() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(ROWS)), batch_size=SIZE, shuffle=True, num_workers=1)


def stream() -> DataLoader[Any]:
    return Ahead(Stream(), batch_size=SIZE)


MAKE = {
    "plain": plain,
    "ahead": ahead,
    "at times": at_times,
    "own generator": own_generator,
    "distributed": distributed,
    "workers": workers,
    "stream": stream,
}


class Process:
    """Process that trains. It records the batch and a random number of each step, and the position at its commit."""

    def __init__(self, make: Any, *, kept: bool, by_epochs: bool = False) -> None:
        torch.manual_seed(1)
        random.seed(2)
        self.loader = make()
        self.place = PlainPlace(self.loader) if kept else None
        self.epochs = Epochs() if self.place is None else self.place.epochs
        self.by_epochs = by_epochs
        self.rng = RngCapture()
        self.positions: dict[int, Position] = {}
        self.record(0)

    def end(self) -> None:
        """End its workers now. The collector might end them later in a forked worker of the next process."""
        if self.place is not None and self.loader.num_workers:
            self.place.batches._shutdown_workers()  # type: ignore[union-attr]

    def record(self, step: int) -> None:
        if self.place is not None:
            rng = [bytes(state) for state in self.rng.capture()]
            self.positions[step] = rng, self.epochs.pack(), tree.pack(self.place.state_dict())
            self.place.committed()

    def go_to(self, step: int, position: Position) -> None:
        rng, epochs, data = self.positions[step] = position
        assert self.place is not None
        self.epochs.unpack(epochs)
        self.place.load_state_dict(tree.unpack(data))
        self.rng.restore(rng)

    def train(self, step: int = 0, until: int = EPOCHS * BATCHES) -> list[Any]:
        """Train from `step` on. In the middle of step `until` stop, after its batch and its random number."""
        seen: list[Any] = []
        epochs = self.epochs.up_to(EPOCHS, lambda: None) if self.by_epochs else range(step // BATCHES, EPOCHS)
        for epoch in epochs:
            for batch in self.loader:
                seen.append([as_list(batch), torch.rand(()).item(), random.random()])
                if step == until:
                    return seen[:-1]
                step += 1
                self.record(step)
            assert step == (epoch + 1) * BATCHES
        return seen


def as_list(batch: Any) -> Any:
    return [as_list(part) for part in batch] if isinstance(batch, list) else batch.tolist()


@pytest.mark.parametrize("kind", MAKE)
def test_an_undisturbed_training_is_as_without_taskd(kind: str) -> None:
    make = MAKE[kind]
    assert Process(make, kept=True).train() == Process(make, kept=False).train()


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("by_epochs", [False, True], ids=["range", "epochs"])
@pytest.mark.parametrize("lives", [True, False], ids=["survivor", "newcomer"])
def test_a_training_goes_on_behind_any_step(kind: str, by_epochs: bool, lives: bool) -> None:
    make = MAKE[kind]
    wanted = Process(make, kept=False).train()
    steps = range(1, EPOCHS * BATCHES) if kind != "workers" else (1, BATCHES - 1, BATCHES, BATCHES + 1, 2 * BATCHES)
    for step in steps:
        if kind == "stream" and not by_epochs and step % BATCHES == 0:
            continue  # the end of the pass is unknown: the loop over `epochs` ends there and continues
        process = Process(make, kept=True, by_epochs=by_epochs)
        before = process.train(until=step)
        position = process.positions[step]
        if not lives:
            process.end()
            process = Process(make, kept=True, by_epochs=by_epochs)
        process.go_to(step, position)
        assert before + process.train(step) == wanted, f"behind step {step}"


@pytest.mark.parametrize("kind", ["plain", "ahead", "at times"])
@pytest.mark.parametrize("lives", [True, False], ids=["survivor", "newcomer"])
def test_faults_follow_one_another(kind: str, lives: bool) -> None:
    make = MAKE[kind]
    process, seen, step = Process(make, kept=True), [], 0
    for until in (1, 1, 2, 3, BATCHES, BATCHES, BATCHES + 2):
        seen += process.train(step, until)
        step, position = until, process.positions[until]
        if not lives:
            process = Process(make, kept=True)
        process.go_to(step, position)
    assert seen + process.train(step) == Process(make, kept=False).train()


def test_a_survivor_may_go_back_by_several_steps() -> None:
    """The same holds for a return to a copy: later batches are no longer kept, so they are loaded again."""
    process = Process(ahead, kept=True)
    seen = process.train(until=5)
    process.go_to(2, process.positions[2])
    assert seen[:2] + process.train(2) == Process(ahead, kept=False).train()
