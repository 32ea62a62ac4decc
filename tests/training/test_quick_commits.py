"""A usual commit runs in the core alone; code that needs more of the next commit gets it in Python."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taskd.adaptors.training.positions.payload import pack
from taskd.adaptors.training.recovery import StateRecovery
from taskd.adaptors.training.state import TrainState
from taskd.errors import ConfigError
from taskd.wire.messages import Condition
from tests.training.test_pulse import backward, make, make_with_data, nothing, step


def commits_whole(state: TrainState) -> bool:
    """Do a step. Return whether its commit went through Python."""
    backward(state)
    state.optimizer.step()
    state.second.step()
    called: list[object] = []
    sys.setprofile(lambda frame, event, _argument: called.append(frame.f_code) if event == "call" else None)
    try:
        state.commit()
    finally:
        sys.setprofile(None)
    assert TrainState.commit.__code__ in called
    return StateRecovery.commit.__code__ in called


def usual(path: Path) -> TrainState:
    """Return a state that is past its first commits."""
    state = make(path)
    while commits_whole(state):
        assert state.step < 10, "the core never commits alone"
    return state


def test_a_usual_commit_is_the_cores_alone(tmp_path: Path) -> None:
    state = usual(tmp_path / "position")
    before, commits = state.step, state._recovery.commits
    assert not commits_whole(state)
    assert (state.step, state._recovery.commits) == (before + 1, commits + 1)
    assert state._recovery.condition() is Condition.CLEAN
    file: Any = state._recovery._positions
    assert file.read()[state.step] == pack(state._recovery._rng.capture())


def nothing_of(_step: int) -> None:
    pass


def wait_for_commit(state: TrainState) -> None:
    state._recovery.on_commit = nothing_of


def fail_a_collective(state: TrainState) -> None:
    state._recovery.failures.note()


def verify(state: TrainState) -> None:
    state._recovery.verify = nothing


def work_afterwards(state: TrainState) -> None:
    state.after_commit(nothing_of)


def go_back(state: TrainState) -> None:
    state._recovery.rollback()


def touch_buffers(state: TrainState) -> None:
    state._recovery.buffers.touched = True
    state._recovery._save(state.model)


def receive_a_state(state: TrainState) -> None:
    with state._recovery.restoring(state.step):
        pass


@pytest.mark.parametrize(
    "asks",
    [wait_for_commit, fail_a_collective, verify, work_afterwards, go_back, touch_buffers, receive_a_state],
)
def test_whoever_asks_for_more_has_the_next_commit_whole(asks: Callable[[TrainState], None], tmp_path: Path) -> None:
    state = usual(tmp_path / "position")
    asks(state)
    assert commits_whole(state)


def test_a_commit_without_an_optimizers_step_is_whole(tmp_path: Path) -> None:
    """Its gradients may be summed over several commits."""
    state = usual(tmp_path / "position")
    backward(state)
    state.commit()
    with pytest.raises(ConfigError, match="while gradients were still being accumulated"):
        step(state)


def test_a_commit_with_a_loss_is_whole(tmp_path: Path) -> None:
    state = usual(tmp_path / "position")
    said: list[int] = []
    state._recovery.losses.tell = lambda step, _loss: said.append(step)
    step(state)
    state.commit(float("nan"))
    assert said == [state.step]


def test_a_data_position_that_cannot_be_packed_leaves_a_torn_state(tmp_path: Path) -> None:
    state = make_with_data(tmp_path / "position")
    for _ in range(6):
        backward(state)
        state.optimizer.step()
        state.commit()
    backward(state)
    state.optimizer.step()
    del state.stream.fill
    with pytest.raises(AttributeError, match="fill"):
        state.commit()
    assert state._recovery.condition() is Condition.TORN
