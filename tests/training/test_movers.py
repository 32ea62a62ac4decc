"""Parameters that a forward pass changes, and no optimizer, are put back with the step."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from taskd.adaptors.training.state import TrainState
from taskd.wire.kinds import JobRank
from taskd.wire.messages import Condition
from tests.training.test_followers import STEPS, step


class Contrast(nn.Module):
    """Model like MoCo: an encoder that no optimizer trains follows the other one within the forward pass.

    Args:
        how: in place, through `.data`, or with other memory in `.data`, as the official program does.
    """

    def __init__(self, how: str = "in place") -> None:
        super().__init__()
        self.how = how
        self.query, self.key, self.frozen = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
        for parameter in (*self.key.parameters(), *self.frozen.parameters()):
            parameter.requires_grad = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for mine, theirs in zip(self.key.parameters(), self.query.parameters(), strict=True):
                if self.how == "other memory":
                    mine.data = mine.data * 0.9 + theirs.data * 0.1
                else:
                    (mine.data if self.how == "data" else mine).mul_(0.9).add_(theirs, alpha=0.1)
        return self.query(x) - self.key(self.frozen(x))


@pytest.mark.parametrize("how", ["in place", "data", "other memory"])
@pytest.mark.parametrize("commits", [0, 1, 6])
def test_what_a_forward_pass_changes_of_a_model_is_put_back(commits: int, how: str) -> None:
    """This holds from the second step on. Before that, the changed parameters are unknown."""
    torch.manual_seed(0)
    model = Contrast(how)
    state = TrainState(model=model, optimizer=torch.optim.SGD(model.query.parameters(), lr=0.1))
    state._recovery.begin(JobRank(0))
    for _ in range(commits):
        step(state)
        state.commit()
    before = copy.deepcopy(model.state_dict())
    for _ in range(2):
        model(torch.ones(2, 3)).sum().backward()
        if not commits:
            assert state._recovery.condition() is Condition.TORN
            return
        assert state._recovery.condition() is Condition.CLEAN
        state._recovery.rollback()
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_fault_in_the_step_in_which_the_search_for_what_moves_ends() -> None:
    """Its first optimizer is about to step. The moving parameters are known by now and can be put back."""
    torch.manual_seed(0)
    model = Contrast()
    state = TrainState(model=model, optimizer=torch.optim.SGD(model.query.parameters(), lr=0.1))
    state._recovery.begin(JobRank(0))
    seen = []
    state.optimizer.register_step_pre_hook(lambda *_: seen.append(state._recovery.why_not_again()))
    for _ in range(5):
        step(state)
        state.commit()
    assert [bool(why) for why in seen] == [True, False, False, False, False]


class Quantized(torch.Tensor):
    """Tensor type of a library that denies access to its elements."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in ("as_strided", "data_ptr", "clone", "reshape"):
            raise NotImplementedError(func)
        return super().__torch_function__(func, types, args, kwargs or {})


def test_parameters_of_a_kind_of_their_own_are_known_by_their_versions_alone() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    weight = torch.zeros(3, 3).as_subclass(Quantized)
    model[0].weight = nn.Parameter(weight, requires_grad=False)
    state = TrainState(model=model, optimizer=torch.optim.SGD(model[1].parameters(), lr=0.1))
    state._recovery.begin(JobRank(0))
    for _ in range(STEPS):
        step(state)
        state.commit()
    model(torch.ones(2, 3)).sum().backward()
    assert state._recovery.condition() is Condition.CLEAN


def test_parameters_that_are_gathered_for_the_time_of_a_pass_have_not_changed() -> None:
    """ZeRO-3 and offloading do this: between passes the parameters have no memory."""
    model = nn.Sequential(first := nn.Linear(3, 3), nn.Linear(3, 3))
    frozen = first.weight.requires_grad_(False)
    whole, away = frozen.data.clone(), torch.empty(0)
    frozen.data = away
    state = TrainState(model=model, optimizer=torch.optim.SGD(model[1].parameters(), lr=0.1))
    state._recovery.begin(JobRank(0))
    first.register_forward_pre_hook(lambda *_: setattr(frozen, "data", whole))
    for _ in range(STEPS):
        step(state)
        frozen.data = away
        state.commit()
    model(torch.ones(2, 3)).sum().backward()
    assert state._recovery.condition() is Condition.CLEAN
    state._recovery.rollback()
    assert frozen.data is not away
    assert torch.equal(frozen, whole)


def test_what_a_closure_changes_of_a_model_is_not_put_back() -> None:
    torch.manual_seed(0)
    model = Contrast()
    state = TrainState(model=model, optimizer=torch.optim.SGD(model.query.parameters(), lr=0.1))
    state._recovery.begin(JobRank(0))

    def closure() -> torch.Tensor:
        loss: torch.Tensor = model(torch.ones(2, 3)).sum()
        if state.step == 6:
            raise RuntimeError("a peer has died")
        return loss

    for _ in range(6):
        state.optimizer.step(closure)
        state.commit()
    with pytest.raises(RuntimeError):
        state.optimizer.step(closure)
    assert state._recovery.condition() is Condition.TORN
