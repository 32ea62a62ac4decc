"""A script may seed its generators at the start of each epoch: a resumed epoch draws the same numbers."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from taskd.adaptors.training.state import TrainState
from taskd.wire.kinds import JobRank

EPOCHS, STEPS = 3, 4


class Cut(Exception):  # noqa: N818 - it stands for a fault
    """Fault."""


def seed_torch(epoch: int) -> None:
    torch.manual_seed(100 + epoch)


def seed_all(epoch: int) -> None:
    torch.manual_seed(100 + epoch)
    random.seed(epoch)
    np.random.seed(epoch)


def draw() -> tuple[float, ...]:
    return torch.rand(()).item(), random.random(), float(np.random.rand())


class Process:
    """Process that seeds, and draws in each step, also from Python and numpy."""

    def __init__(self, seeds: Callable[[int], None], **options: Any) -> None:
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        self.seeds = seeds
        model = torch.nn.Linear(1, 1)
        self.loader = DataLoader(TensorDataset(torch.arange(STEPS * 2.0)), batch_size=2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.state = TrainState(model=model, optimizer=optimizer, loader=self.loader, **options)
        self.seen: list[Any] = []

    def train(self, cut_at: int = -1, *, cut_behind: bool = False) -> None:
        for epoch in self.state.epochs(EPOCHS):
            self.seeds(epoch)
            for _ in self.loader:
                if len(self.seen) == cut_at and not cut_behind:
                    draw()
                    raise Cut
                self.seen.append((epoch, draw()))
                self.state.commit()
            if len(self.seen) == cut_at:
                draw()
                raise Cut

    def go_on(self) -> None:
        """Continue as a recovery does, in this process."""
        self.state._recovery.redo()
        self.state._recovery.enter_again()
        self.train()


@pytest.mark.parametrize("seed", [seed_torch, seed_all])
@pytest.mark.parametrize("options", [{}, {"seed": 7}])
@pytest.mark.parametrize("behind", [False, True])
def test_steps_draw_what_they_would_have(seed: Callable[[int], None], options: dict[str, Any], *, behind: bool) -> None:
    """The fault comes in each step, or after each epoch."""
    whole = Process(seed, **options)
    whole.state._recovery.begin(JobRank(0))
    whole.train()
    for cut_at in range(1, EPOCHS * STEPS):
        if behind and cut_at % STEPS:
            continue
        process = Process(seed, **options)
        process.state._recovery.begin(JobRank(0))
        with pytest.raises(Cut):
            process.train(cut_at, cut_behind=behind)
        process.go_on()
        assert process.seen == whole.seen, cut_at


def test_numbers_that_are_drawn_there_stay_drawn() -> None:
    """A script that draws before its loop and does not seed stays unchanged: the purpose of its draws is unknown."""

    def draws(_: int) -> None:
        draw()

    process = Process(draws)
    process.state._recovery.begin(JobRank(0))
    with pytest.raises(Cut):
        process.train(STEPS + 2)
    recovery = process.state._recovery
    recovery.redo()
    expected = [draw(), draw()][1]
    recovery.redo()
    recovery.enter_again()
    process.seen = []
    process.train()
    assert process.seen[0] == (1, expected)


def test_a_seed_of_each_step_is_not_undone() -> None:
    """The loader is opened late, by a generator that each step calls after its own seed."""

    def batches(process: Process) -> Any:
        yield from process.loader

    def train(process: Process, cut_at: int = -1) -> None:
        for epoch in process.state.epochs(EPOCHS):
            source = batches(process)
            for _ in range(STEPS - process.state.step % STEPS):
                torch.manual_seed(process.state.step)
                next(source)
                if len(process.seen) == cut_at:
                    raise Cut
                process.seen.append((epoch, draw()[0]))
                process.state.commit()
            for _ in source:
                pass

    whole, process = Process(seed_torch), Process(seed_torch)
    for one in (whole, process):
        one.state._recovery.begin(JobRank(0))
    train(whole)
    with pytest.raises(Cut):
        train(process, STEPS + 2)
    process.state._recovery.redo()
    process.state._recovery.enter_again()
    train(process)
    assert process.seen == whole.seen
