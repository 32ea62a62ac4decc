"""The first step with a received state must be finite, if the losses before the fault were."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from taskd.adaptors.training.state import TrainState
from taskd.errors import ConfigError, DistrustError
from taskd.wire.messages import Condition

NAN = float("nan")


def trained(*losses: float | None) -> TrainState:
    """Return a state that was trained with these losses."""
    model = nn.Linear(2, 2)
    state = TrainState(model=model, optimizer=torch.optim.AdamW(model.parameters()))
    for loss in losses:
        step(state, loss)
    return state


def step(state: TrainState, loss: Any, gradient: float = 1.0) -> None:
    state.optimizer.zero_grad()
    (state.model(torch.ones(1, 2)).sum() * gradient).backward()
    state.optimizer.step()
    state.commit(loss)


def watched(*losses: float | None, source: str = "rank 7") -> tuple[TrainState, list[str]]:
    state, distrusted = trained(*losses), []
    state._recovery.watch_first_step(source, lambda: distrusted.append(source))
    return state, distrusted


@pytest.mark.parametrize("loss", [NAN, math.inf, torch.tensor(NAN), torch.full((1, 1), -math.inf)])
def test_a_loss_that_is_not_finite_is_no_step(loss: Any) -> None:
    state, distrusted = watched(1.0)
    with pytest.raises(DistrustError, match="in the first step with the state that came from rank 7"):
        step(state, loss)
    assert (state.step, distrusted) == (1, ["rank 7"])
    assert state._recovery.condition() is Condition.TORN


@pytest.mark.parametrize("source", ["rank 7", ""])
def test_gradients_that_are_not_finite_change_nothing(source: str) -> None:
    """A rank that kept its own state is not to blame, but it must not step either: it has the others' gradients."""
    state, distrusted = watched(1.0, source=source)
    before = {name: value.clone() for name, value in state.model.state_dict().items()}
    with pytest.raises(DistrustError, match="gradients are not finite"):
        step(state, 1.0, NAN)
    assert all(torch.equal(value, before[name]) for name, value in state.model.state_dict().items())
    assert (state.step, distrusted) == (1, [source])
    assert state._recovery.condition() is (Condition.TORN if source else Condition.CLEAN)


def test_a_loss_of_ones_own_state_is_the_scripts() -> None:
    state, distrusted = watched(1.0, source="")
    step(state, NAN)
    assert (state.step, distrusted) == (2, [])


@pytest.mark.parametrize("losses", [(), (None, None), (1.0, NAN), (1.0, None, math.inf)])
def test_it_is_no_reason_if_losses_were_not_known_to_be_finite(losses: tuple[float | None, ...]) -> None:
    state, distrusted = watched(*losses)
    step(state, NAN, NAN)
    assert (state.step, distrusted) == (len(losses) + 1, [])


def test_only_the_first_step_is_looked_at() -> None:
    state, distrusted = watched(1.0)
    hooks = len(state.optimizer._optimizer_step_pre_hooks)
    step(state, 1.0)
    assert len(state.optimizer._optimizer_step_pre_hooks) == hooks - 1, "no later step pays for it"
    step(state, NAN, NAN)
    assert (state.step, distrusted) == (3, [])


def test_a_state_that_comes_from_a_donor_is_judged_by_the_donors_losses() -> None:
    for finite in (True, False):
        state = trained(NAN if finite else 1.0)
        with state._recovery.restoring(1):
            pass
        state._recovery.losses.take(finite=finite)
        state._recovery.watch_first_step("rank 7")
        assert state._recovery.first_step.watched == finite


def test_a_gradient_scaler_sees_to_a_fused_step_by_itself() -> None:
    model = nn.Linear(2, 2)
    state = TrainState(model=model, optimizer=torch.optim.AdamW(model.parameters(), fused=True))
    step(state, 1.0)
    state._recovery.watch_first_step("rank 7")
    state.optimizer.found_inf = torch.ones(())
    step(state, 1.0, NAN)
    assert (state.step, bool(model.weight.isfinite().all())) == (2, True)


def test_what_is_no_loss_is_refused_as_ever() -> None:
    state, _ = watched(1.0)
    with pytest.raises(ConfigError, match="of shape"):
        step(state, torch.ones(2))


def test_gradients_that_are_sparse_or_missing_are_left_alone() -> None:
    model = nn.Embedding(4, 2, sparse=True)
    model.register_parameter("unused", nn.Parameter(torch.ones(1)))
    state = TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    state.commit(1.0)
    state._recovery.watch_first_step("rank 7")
    model(torch.tensor([1])).sum().backward()
    state.optimizer.step()
    state.commit(1.0)
    assert state.step == 2
