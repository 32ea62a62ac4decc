"""A gradient scaler in a state: a fault between its scaling and its update, and a scaler that is not enabled."""

import pytest
import torch

from taskd.adaptors.training.state import TrainState
from taskd.wire.messages import Condition
from tests.training.test_followers import make


def scaled_step(state: TrainState, *, infinite: bool) -> None:
    state.optimizer.zero_grad()
    loss = state.model(torch.ones(2, 3)).square().mean() * (float("inf") if infinite else 1.0)
    state.scaler.scale(loss).backward()
    state.scaler.step(state.optimizer)


@pytest.mark.parametrize("left_out", [0, 1, 2, 5])
def test_a_step_that_a_scaler_has_left_out_is_not_done_again_with_another_scale(left_out: int) -> None:
    state = make(scaler=lambda _: torch.amp.GradScaler("cpu", init_scale=64.0))
    for number in range(left_out):
        scaled_step(state, infinite=number == 3)
        state.scaler.update()
        state.commit()
    scaled_step(state, infinite=True)
    assert state._recovery.condition() is Condition.CLEAN
    state.scaler.update()
    assert state._recovery.condition() is Condition.TORN


def test_a_scaler_that_is_updated_behind_the_commit_hinders_nothing() -> None:
    state = make(scaler=lambda _: torch.amp.GradScaler("cpu", init_scale=64.0))
    for _ in range(5):
        scaled_step(state, infinite=False)
        state.commit()
        state.scaler.update()
    assert state._recovery.condition() is Condition.CLEAN


def test_gradients_that_were_dropped_are_unscaled_anew() -> None:
    state = make(scaler=lambda _: torch.amp.GradScaler("cpu", init_scale=64.0))

    def begin_step() -> None:
        state.optimizer.zero_grad()
        state.scaler.scale(state.model(torch.ones(2, 3)).square().mean()).backward()
        state.scaler.unscale_(state.optimizer)

    for _ in range(3):
        begin_step()
        gradient = state.model.weight.grad.clone()
        assert state._recovery.condition() is Condition.CLEAN
        state._recovery.rollback()
        state._recovery.drop_step()
        begin_step()
        assert torch.equal(state.model.weight.grad, gradient)
        state.scaler.step(state.optimizer)
        state.scaler.update()
        state.commit()
    assert state.step == 3


def test_a_scaler_that_is_not_enabled_hinders_nothing() -> None:
    state = make(scaler=lambda _: torch.amp.GradScaler("cpu", enabled=False))
    for _ in range(5):
        state._recovery.drop_step()
        scaled_step(state, infinite=False)
        state.scaler.update()
        state.commit()
    assert state._recovery.condition() is Condition.CLEAN
