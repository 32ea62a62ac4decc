"""Parts without tensors: a schedule of the user's own, a counter. A step counts with them, or they are put back."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from taskd.adaptors.trainers.titan.own import TitanShared
from taskd.adaptors.training.state import TrainState
from taskd.wire.kinds import JobRank
from taskd.wire.messages import Condition
from tests.training.test_followers import STEPS, step


class Warmup:
    """Schedule of the user's own, which keeps constants and sets the rate."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.rate = optimizer, 0.1

    def step_update(self, update: int) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate / (1 + update)

    def state_dict(self) -> dict[str, Any]:
        return {"rate": self.rate}

    def load_state_dict(self, values: dict[str, Any]) -> None:
        self.rate = values["rate"]


class Counter:
    """Counter of samples."""

    def __init__(self) -> None:
        self.seen, self.last = 0, [0.0]

    def count(self, number: int) -> None:
        self.seen, self.last = self.seen + number, [float(number)]

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen, "last": self.last}

    def load_state_dict(self, values: dict[str, Any]) -> None:
        self.seen, self.last = values["seen"], values["last"]


def with_part(part: Callable[[torch.optim.Optimizer], Any]) -> TrainState:
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = TrainState(model=model, optimizer=optimizer, replicated={"part": part(optimizer)})
    state._recovery.begin(JobRank(0))
    return state


def move(state: TrainState) -> None:
    part = state._recovery.parts.all["part"]
    part.count(2) if isinstance(part, Counter) else part.step_update(state.step + 1)


@pytest.mark.parametrize("part", [Warmup, lambda _: Counter()], ids=["schedule", "counter"])
def test_a_step_without_a_part_that_has_no_tensors_is_not_adopted(part: Any, caplog: pytest.LogCaptureFixture) -> None:
    state = with_part(part)
    for _ in range(STEPS):
        step(state)
        move(state)
        state.commit()
    step(state)
    assert state._recovery.condition() is Condition.TORN
    assert "and part has not followed" in caplog.text
    move(state)
    assert state._recovery.condition() is Condition.STEPPED


@pytest.mark.parametrize("commits", [0, STEPS])
@pytest.mark.parametrize("part", [Warmup, lambda _: Counter()], ids=["schedule", "counter"])
def test_what_has_no_tensors_and_moves_before_the_optimizer_is_put_back(part: Any, commits: int) -> None:
    state = with_part(part)
    for _ in range(commits):
        move(state)
        step(state)
        state.commit()
    known = copy.deepcopy((state._recovery.parts.all["part"].state_dict(), state.optimizer.param_groups[0]["lr"]))
    move(state)
    assert state._recovery.condition() is Condition.CLEAN
    state._recovery.rollback()
    assert (state._recovery.parts.all["part"].state_dict(), state.optimizer.param_groups[0]["lr"]) == known


def test_what_has_no_tensors_and_moves_behind_the_commit_is_right_as_it_is() -> None:
    state = with_part(lambda _: Counter())
    for _ in range(STEPS):
        step(state)
        state.commit()
        move(state)
    state._recovery.rollback()
    assert state._recovery.parts.all["part"].seen == 2 * STEPS


def test_a_part_that_stands_is_asked_no_more() -> None:
    asked = []

    class Asked(Counter):
        def state_dict(self) -> dict[str, Any]:
            asked.append(True)
            return super().state_dict()

    state = with_part(lambda _: Asked())
    for _ in range(STEPS):
        step(state)
        state.commit()
    known = len(asked)
    for _ in range(STEPS):
        step(state)
        state.commit()
    assert len(asked) == known
    step(state)
    assert state._recovery.condition() is Condition.STEPPED


def test_parts_of_taskds_own_are_left_alone() -> None:
    """A trainer's part holds its state of the last commit, whenever a fault comes."""
    state = with_part(lambda _: TitanShared())
    for number in range(STEPS):
        step(state)
        state._recovery.parts.all["part"].tokens = number
        state.commit()
    step(state)
    assert state._recovery.condition() is Condition.STEPPED


@pytest.mark.parametrize("more", [{"words": "x" * 5000}, {"object": object()}, {"many": list(range(100_000))}])
def test_a_part_that_is_large_or_no_plain_value_is_not_copied(more: dict[str, Any]) -> None:
    class Larger(Counter):
        def state_dict(self) -> dict[str, Any]:
            return {**super().state_dict(), **more}

    state = with_part(lambda _: Larger())
    for _ in range(STEPS):
        step(state)
        move(state)
        state.commit()
    step(state)
    assert state._recovery.condition() is Condition.STEPPED
