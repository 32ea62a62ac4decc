"""Checkpoints written while a script trains, and the return to them in a living process."""

import shutil
from pathlib import Path

import pytest
import torch

import taskd
from taskd.adaptors.training.checkpoints.saved import go_back
from taskd.adaptors.training.keeping import SavedCheckpoint
from taskd.errors import CheckpointError, RestoreError
from taskd.wire.kinds import JobRank
from taskd.wire.messages import Condition


def trained(steps: int, *, ends: bool = True) -> taskd.TrainState:
    """Return a trained state with dropout and random numbers of the script's own."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
    state = taskd.TrainState(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=0.05))
    state._recovery.begin(JobRank(0))
    for _ in range(steps):
        train(state)
    if not ends:
        state.optimizer.step()
        state.optimizer.step()
    return state


def train(state: taskd.TrainState) -> float:
    state.optimizer.zero_grad()
    loss = state.model(torch.randn(8, 3)).square().mean()
    loss.backward()
    state.optimizer.step()
    state.commit()
    return float(loss.detach())


def test_a_living_process_goes_back_to_what_it_has_saved(tmp_path: Path) -> None:
    state = trained(3)
    told = []
    state._recovery.on_saved = lambda: told.append(state._recovery.saved)
    path = taskd.save(state, tmp_path / "checkpoints")
    assert path.name == "step-3"
    assert told == [SavedCheckpoint(3, str(path))]
    losses = [train(state) for _ in range(4)]
    state._recovery.failures.note()
    state.optimizer.step()  # torn
    position, inexact = go_back(state._recovery, 3)
    state._recovery.drop_step()
    assert not state._recovery.return_to(3, position, own=True)
    assert (state.step, state._recovery.condition(), inexact) == (3, Condition.CLEAN, "")
    assert [train(state) for _ in range(4)] == losses, "weights, averages and random numbers are those of step 3"


def test_what_cannot_be_read_leaves_the_state_untouched(tmp_path: Path) -> None:
    state = trained(2)
    path = taskd.save(state, tmp_path)
    weights = state.model[0].weight.clone()
    shutil.rmtree(path)
    with pytest.raises(RestoreError, match="not all ranks can go back to the checkpoint of step 2"):
        go_back(state._recovery, 2)
    with pytest.raises(RestoreError, match="no rank knows where the checkpoint of step 1 is"):
        go_back(state._recovery, 1)
    assert torch.equal(state.model[0].weight, weights)
    assert state._recovery.condition() is Condition.CLEAN


def test_nothing_is_saved_within_a_step(tmp_path: Path) -> None:
    state = trained(2, ends=False)
    with pytest.raises(CheckpointError, match="rank 0 is torn at step 2, expected clean"):
        taskd.save(state, tmp_path)
    assert state._recovery.saved is None
    assert not [*tmp_path.iterdir()]


def test_a_new_job_finds_it(tmp_path: Path) -> None:
    state = trained(3)
    taskd.save(state, tmp_path)
    losses = [train(state) for _ in range(2)]
    fresh = trained(0)
    assert taskd.load_latest(fresh, tmp_path) == 3
    assert [train(fresh) for _ in range(2)] == losses
