"""An evaluation with parameters other than the trained ones: a process interrupted in it has no usable state."""

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from taskd.adaptors.training.proof.parameters import ParameterWatch
from taskd.adaptors.training.state import TrainState
from taskd.wire.kinds import JobRank
from taskd.wire.messages import Condition

LATE = 70
"""Number of commits after which no commit is followed by a check any more."""


class Training:
    """Small training with its watch, as in a session."""

    def __init__(self, file: Path) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1, dtype=torch.float32))
        self.state = TrainState(model=self.model, optimizer=torch.optim.SGD(self.model.parameters(), lr=0.1))
        self.recovery = self.state._recovery
        self.recovery.attach(str(file))
        self.recovery.begin(JobRank(0))
        self.watch = ParameterWatch(self.recovery, 0)
        self.recovery.on_commit = lambda _step: self.watch.committed()
        self.watch.enter()
        self.shadow = [parameter.detach() + 1 for parameter in self.model.parameters()]

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.forward()
            self.state.optimizer.step()
            self.state.commit()
            if not self.watch.owes:
                self.recovery.on_commit = None

    def forward(self) -> None:
        self.model.train()
        self.state.optimizer.zero_grad()
        self.model(torch.ones(4, 2)).sum().backward()

    @contextmanager
    def swapped(self) -> Iterator[None]:
        kept = [parameter.detach().clone() for parameter in self.model.parameters()]
        for parameter, other in zip(self.model.parameters(), self.shadow, strict=True):
            parameter.data.copy_(other)
        yield
        for parameter, own in zip(self.model.parameters(), kept, strict=True):
            parameter.data.copy_(own)

    def evaluate(self) -> None:
        self.model.eval()
        with torch.no_grad():
            self.model(torch.ones(4, 2))


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    made = Training(tmp_path / "position")
    yield made
    made.watch.close()
    vars(made).clear()
    gc.collect()  # collects objects that only reference cycles hold


@pytest.mark.parametrize("passes", [0, 1])
def test_the_first_evaluation_is_interrupted_with_other_parameters(training: Training, passes: int) -> None:
    training.steps(3)
    with training.swapped():
        for _ in range(passes):
            training.evaluate()
        assert training.recovery.condition() is Condition.TORN
    assert training.recovery.condition() is Condition.CLEAN


def test_an_evaluation_that_leaves_them_may_be_interrupted(training: Training) -> None:
    training.steps(3)
    training.evaluate()
    assert training.recovery.condition() is Condition.CLEAN
    training.forward()
    assert training.recovery.condition() is Condition.CLEAN


def test_a_late_first_evaluation_counts_as_lost_until_it_is_over(training: Training) -> None:
    training.steps(LATE)
    assert not training.watch.owes
    training.evaluate()
    assert training.recovery.condition() is Condition.TORN
    training.forward()
    assert training.recovery.condition() is Condition.CLEAN
    training.steps(1)
    training.evaluate()
    assert training.recovery.condition() is Condition.CLEAN


def test_work_behind_a_commit_is_looked_at_before(training: Training) -> None:
    conditions: list[Condition] = []

    def work(_step: int) -> None:
        training.evaluate()
        conditions.append(training.recovery.condition())
        with training.swapped():
            training.evaluate()
            conditions.append(training.recovery.condition())

    training.steps(LATE - 1)
    training.state.after_commit(work, every=LATE)
    training.steps(1)
    assert conditions == [Condition.CLEAN, Condition.TORN]


def test_what_was_seen_late_is_watched_from_then_on(training: Training, caplog: pytest.LogCaptureFixture) -> None:
    training.steps(LATE)
    with training.swapped(), caplog.at_level(logging.WARNING):
        training.evaluate()
    training.forward()
    assert caplog.text.count("at a fault in it all processes start anew") == 1
    assert f"{Path(__file__)}:" in caplog.text
    training.recovery.on_commit = lambda _step: training.watch.committed()
    training.steps(2)
    with training.swapped():
        assert training.recovery.condition() is Condition.TORN  # before its first pass


def test_a_second_kind_of_evaluation_is_seen(training: Training, caplog: pytest.LogCaptureFixture) -> None:
    training.steps(LATE)
    training.evaluate()
    training.steps(1)
    with training.swapped():
        training.evaluate()
    training.forward()
    assert "an evaluation with other parameters" in caplog.text


def test_a_step_of_an_optimizer_is_no_movement(training: Training, caplog: pytest.LogCaptureFixture) -> None:
    training.steps(2)
    training.forward()
    training.state.optimizer.step()
    training.evaluate()
    assert training.recovery.condition() is Condition.STEPPED
    training.state.commit()
    training.forward()
    assert training.recovery.condition() is Condition.CLEAN
    assert "an evaluation with other parameters" not in caplog.text
