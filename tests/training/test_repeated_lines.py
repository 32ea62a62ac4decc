"""What a script changes as each epoch begins, a recovery within the epoch does not change once more."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from taskd.adaptors.training.proof.reading import read_function
from taskd.adaptors.training.state import TrainState
from taskd.wire.kinds import JobRank

EPOCHS, STEPS = 3, 4
NOTHING: Any = ((), {})


class Cut(Exception):  # noqa: N818 - it is what a fault does
    """The fault."""


class Noise(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rate = 0.5

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows * self.rate


class Process:
    """Its steps see a learning rate and an attribute of the model."""

    def __init__(self) -> None:
        self.model = torch.nn.Sequential(torch.nn.Linear(1, 1), Noise())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, gamma=0.5)
        self.loader = DataLoader(TensorDataset(torch.arange(STEPS * 2.0)), batch_size=2)
        self.state = TrainState(
            model=self.model, optimizer=self.optimizer, scheduler=self.scheduler, loader=self.loader, seed=1
        )
        self.state._recovery.begin(JobRank(0))
        self.seen: list[Any] = []
        self.cut_at = -1

    def step(self, epoch: int) -> None:
        if len(self.seen) == self.cut_at:
            raise Cut
        self.optimizer.step()
        self.seen.append((epoch, self.optimizer.param_groups[0]["lr"], self.model[1].rate))
        self.state.commit()

    def go_on(self, train: Callable[[], None]) -> list[Any]:
        self.state._recovery.redo()
        self.state._recovery.enter_again()
        self.cut_at = -1
        train()
        return self.seen


def by_hand(process: Process) -> Callable[[], None]:
    state, loader, optimizer, model = process.state, process.loader, process.optimizer, process.model

    def train() -> None:
        for epoch in state.epochs(EPOCHS):
            for group in optimizer.param_groups:
                group["lr"] *= 0.5
            for module in model.modules():
                if isinstance(module, Noise):
                    module.rate = module.rate * 0.9
            for _ in loader:
                process.step(epoch)

    return train


def with_a_scheduler(process: Process) -> Callable[[], None]:
    """A rate that is multiplied by hand, and a scheduler that steps there too."""
    state, loader, optimizer, scheduler = process.state, process.loader, process.optimizer, process.scheduler

    def train() -> None:
        for epoch in state.epochs(EPOCHS):
            if epoch:
                scheduler.step()
                for group in optimizer.param_groups:
                    group["lr"] *= 0.9
            for _ in loader:
                process.step(epoch)

    return train


@pytest.mark.parametrize("make", [by_hand, with_a_scheduler])
def test_it_is_done_once_an_epoch(make: Callable[[Process], Callable[[], None]]) -> None:
    """Cut off in each step, the first and the last of an epoch among them."""
    whole = Process()
    make(whole)()
    assert len(whole.seen) == EPOCHS * STEPS
    for cut_at in range(1, EPOCHS * STEPS):
        process = Process()
        process.cut_at = cut_at
        train = make(process)
        assert read_function(train, NOTHING, process.state) == []
        with pytest.raises(Cut):
            train()
        assert process.go_on(train) == whole.seen, cut_at


def test_what_is_set_before_the_epochs_stays() -> None:
    """A job that goes on with fewer ranks may set another rate there."""
    process = Process()
    state, loader, optimizer = process.state, process.loader, process.optimizer
    rates = iter([0.1, 0.05])

    def train() -> None:
        optimizer.param_groups[0]["lr"] = next(rates)
        for epoch in state.epochs(EPOCHS):
            for group in optimizer.param_groups:
                group["momentum"] *= 1.0
            for _ in loader:
                process.step(epoch)

    read_function(train, NOTHING, state)
    process.cut_at = 2
    with pytest.raises(Cut):
        train()
    assert {lr for _, lr, _ in process.go_on(train)[2:]} == {0.05}
