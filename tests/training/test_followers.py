"""A step is adopted only together with its followers, such as averages of the weights. No step is half committed."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from taskd.adaptors.training.state import TrainState
from taskd.errors import ConfigError
from taskd.wire.kinds import JobRank
from taskd.wire.messages import Condition

STEPS = 3


class Shadow:
    """Average of the script's own, as a part with a `state_dict`. With `behind`, it writes through `.data`."""

    def __init__(self, model: nn.Module, *, behind: bool) -> None:
        self.model = model
        self.behind = behind
        self.weights = [p.detach().clone() for p in model.parameters()]

    def update(self) -> None:
        with torch.no_grad():
            for mine, theirs in zip(self.weights, self.model.parameters(), strict=True):
                (mine.data if self.behind else mine).lerp_(theirs, 0.1)

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights = state["weights"]


def make(**parts: Any) -> TrainState:
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    made = {name: part(model) for name, part in parts.items()}
    state = TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), replicated=made)
    state._recovery.begin(JobRank(0))
    return state


def average(model: nn.Module) -> AveragedModel:
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))


def update(state: TrainState) -> None:
    if isinstance(state.ema, AveragedModel):
        state.ema.update_parameters(state.model)
    elif isinstance(state.ema, Shadow):
        state.ema.update()
    else:
        with torch.no_grad():
            for mine, theirs in zip(state.ema.parameters(), state.model.parameters(), strict=True):
                mine.lerp_(theirs, 0.1)


def step(state: TrainState) -> None:
    state.optimizer.zero_grad()
    state.model(torch.full((2, 3), float(state.step + 1))).square().mean().backward()
    state.optimizer.step()


def test_an_average_of_torch_follows_an_adopted_step() -> None:
    whole, state = make(ema=average), make(ema=average)
    for run in (whole, state):
        for _ in range(STEPS):
            step(run)
            update(run)
            run.commit()
        step(run)
    update(whole)
    assert state._recovery.condition() is Condition.STEPPED
    state._recovery.adopt()
    whole.commit()
    for mine, theirs in zip(state.ema.state_dict().values(), whole.ema.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)


def test_an_average_that_has_followed_is_left() -> None:
    state = make(ema=average)
    for _ in range(STEPS):
        step(state)
        update(state)
        state.commit()
    step(state)
    update(state)
    state._recovery.adopt()
    assert state.ema.n_averaged == STEPS + 1


@pytest.mark.parametrize(
    "kind",
    [
        copy.deepcopy,
        lambda model: Shadow(model, behind=False),
        lambda model: Shadow(model, behind=True),
    ],
    ids=["module", "part", "through data"],
)
def test_a_step_without_an_average_of_the_scripts_own_is_not_adopted(
    kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    state = make(ema=kind)
    for _ in range(STEPS):
        step(state)
        update(state)
        state.commit()
    step(state)
    assert state._recovery.condition() is Condition.TORN
    assert f"step {STEPS + 1} cannot be kept: the optimizer has stepped, and ema has not followed" in caplog.text
    update(state)
    assert state._recovery.condition() is Condition.STEPPED


def test_a_teacher_that_stands_still_is_none() -> None:
    state = make(ema=copy.deepcopy)
    for _ in range(STEPS):
        step(state)
        state.commit()
    step(state)
    assert state._recovery.condition() is Condition.STEPPED
    state._recovery.adopt()


def test_a_step_that_may_lack_an_average_of_every_second_one_is_not_adopted() -> None:
    state = make(ema=average)
    for number in range(4):
        step(state)
        if number % 2:
            update(state)
        state.commit()
    step(state)
    assert state._recovery.condition() is Condition.TORN
    update(state)
    assert state._recovery.condition() is Condition.STEPPED


@pytest.mark.parametrize("commits", [0, STEPS])
def test_a_teacher_that_moves_before_the_optimizer_is_not_moved_twice(
    commits: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The step cannot be done again with the present average, which cannot be put back. A report precedes any fault."""
    state = make(ema=copy.deepcopy)
    for _ in range(commits):
        update(state)
        step(state)
        state.commit()
    told = caplog.text
    assert state._recovery.condition() is Condition.CLEAN
    update(state)
    assert state._recovery.condition() is Condition.TORN
    assert caplog.text == told
    assert ("ema changes before optimizer.step()" in caplog.text) is (commits > 0)


def test_an_average_that_moves_behind_the_commit_is_right_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    state = make(ema=copy.deepcopy)
    for _ in range(STEPS):
        step(state)
        state.commit()
        update(state)
    state.model(torch.ones(2, 3)).sum().backward()
    assert state._recovery.condition() is Condition.CLEAN
    assert caplog.text == ""


def test_an_average_is_followed_in_a_step_that_is_done_again() -> None:
    """An average that was put back counts as not moved."""
    state = make(ema=average)
    for _ in range(STEPS):
        step(state)
        update(state)
        state.commit()
    state.model(torch.ones(2, 3)).sum().backward()
    state._recovery.rollback()
    step(state)
    assert state._recovery.condition() is Condition.STEPPED
    state._recovery.adopt()
    assert state.ema.n_averaged == STEPS + 1


def accumulate(state: TrainState, *, to_none: bool) -> None:
    for number in range(4):
        state.model(torch.ones(2, 3)).square().mean().backward()
        if number % 2:
            state.optimizer.step()
            state.optimizer.zero_grad(set_to_none=to_none)
        state.commit()


@pytest.mark.parametrize("to_none", [True, False])
def test_a_commit_for_each_micro_batch_is_refused(to_none: bool) -> None:
    with pytest.raises(ConfigError, match=r"commit\(\) was called for step 1 while gradients were still"):
        accumulate(make(), to_none=to_none)


def test_gradients_that_are_thrown_away_are_not() -> None:
    state = make()
    for number in range(12):
        if number % 3 == 0:
            state.optimizer.zero_grad(set_to_none=number % 2 == 0)
        else:
            state.model.zero_grad(set_to_none=number % 2 == 0)
        state.model(torch.ones(2, 3)).square().mean().backward()
        if number % 4 == 0:
            state.optimizer.step()
        state.commit()
    assert state.step == 12


def test_a_step_that_a_scaler_leaves_out_is_no_accumulation() -> None:
    state = make()
    for number in range(6):
        state.model(torch.ones(2, 3)).square().mean().backward()
        if number % 2:
            state.model.weight.grad.fill_(float("inf"))
        else:
            state.optimizer.step()
        state.commit()
        state.optimizer.zero_grad()
    assert state.step == 6


class Ends:
    """Epochs of two steps. At each end, a scheduler steps and an average follows."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        loader: Any = torch.utils.data.DataLoader([torch.ones(1), torch.ones(1)])  # type: ignore[arg-type]
        self.state = TrainState(
            model=self.model,
            optimizer=optimizer,
            scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5),
            ema=AveragedModel(self.model),
            loader=loader,
        )

    def train(self, *, loop: bool, stop_at: str = "") -> None:
        state = self.state
        for epoch in state.epochs(3) if loop else range(state.step // 2, 3):
            for batch in state.loader:
                if stop_at == f"begun {epoch}":
                    raise RuntimeError("a peer has died")
                state.optimizer.zero_grad()
                self.model(batch).square().mean().backward()
                state.optimizer.step()
                state.commit()
            state.scheduler.step()
            state.ema.update_parameters(self.model)
            if stop_at == f"ended {epoch}":
                raise RuntimeError("a peer has died")

    def seen(self) -> list[Any]:
        return [part.state_dict() for part in self.state._recovery.parts.replicated.values()]


@pytest.mark.parametrize("stop_at", ["ended 0", "begun 1", "ended 1"])
def test_what_is_done_again_at_the_end_of_an_epoch_is_done_once(stop_at: str) -> None:
    whole, ends = Ends(), Ends()
    for run in (whole, ends):
        run.state._recovery.begin(JobRank(0))
    whole.train(loop=True)
    with pytest.raises(RuntimeError):
        ends.train(loop=True, stop_at=stop_at)
    assert ends.state._recovery.condition() is Condition.CLEAN
    assert ends.state._recovery.rollback() == ""
    ends.state._recovery.return_to(ends.state.step)
    ends.train(loop=True)
    assert str(ends.seen()) == str(whole.seen())


def test_a_scheduler_that_is_ahead_is_said_where_nothing_is_done_again() -> None:
    ends = Ends()
    ends.state._recovery.begin(JobRank(0))
    with pytest.raises(RuntimeError):
        ends.train(loop=False, stop_at="ended 0")
    assert "StepLR was advanced after the commit, and is left so" in ends.state._recovery.rollback()
