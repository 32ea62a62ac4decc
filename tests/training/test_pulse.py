"""The core's record of each step equals the one Python would have made, and it disturbs no other code."""

import copy
import gc
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from taskd.adaptors.training.positions.payload import pack
from taskd.adaptors.training.positions.position_file import SLOT_BYTES, PositionFile
from taskd.adaptors.training.recovery import StateRecovery
from taskd.adaptors.training.state import TrainState
from taskd.runtime.box.shim import core
from taskd.runtime.worker.pulse import NEVER
from taskd.wire.messages import Condition
from tests.launch import Launcher
from tests.training.job import ENVIRONMENT


def make(path: Path) -> TrainState:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    state = TrainState(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), second=torch.optim.SGD(model.parameters())
    )
    state._recovery.attach(str(path))
    assert state._recovery.shows_steps, "steps are counted in Python: the rest of this file would test nothing"
    state._recovery.begin()
    return state


def backward(state: TrainState) -> None:
    state.model(torch.randn(8, 4)).square().mean().backward()


def step(state: TrainState) -> None:
    backward(state)
    state.optimizer.step()
    state.second.step()
    state.commit()


def nothing() -> None:
    pass


def a_spare_number() -> None:
    random.gauss(0, 1)


def seeds() -> None:
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)


def many() -> None:
    torch.randn(5000)
    np.random.rand(5000)
    [random.random() for _ in range(5000)]


def numbers_of_numpy_and_python() -> None:
    np.random.normal(size=3)
    random.random()


@pytest.mark.parametrize("draw", [nothing, a_spare_number, seeds, many, numbers_of_numpy_and_python])
def test_an_entry_is_what_python_would_have_written(draw: Callable[[], None], tmp_path: Path) -> None:
    state = make(tmp_path / "position")
    file: Any = state._recovery._positions
    for at in range(1, 9):
        draw()
        backward(state)
        if at % 2:
            draw()
        assert file.read()[at] == pack(state._recovery._rng.capture()) or at % 2
        state.optimizer.step()
        state.second.step()
        state.commit()
        assert file.read()[at] == pack(state._recovery._rng.capture())
        assert {at - 1, at} <= set(file.read())


class Stream:
    """Data position of a script's own."""

    def __init__(self) -> None:
        self.at = 0
        self.fill = b""

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "fill": self.fill}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def make_with_data(path: Path) -> TrainState:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = TrainState(model=model, optimizer=optimizer, data={"stream": Stream()})
    state._recovery.attach(str(path))
    assert state._recovery.shows_steps, "steps are counted in Python: these tests would test nothing"
    state._recovery.begin()
    return state


def wanted_of(state: TrainState) -> bytes:
    rng = state._recovery._rng.capture()
    return pack(rng, state._recovery.parts.data_position(rng))


@pytest.mark.parametrize("draw", [nothing, a_spare_number, many])
@pytest.mark.parametrize("moves", ["before the pass", "behind the pass", "never"])
def test_an_entry_has_the_place_in_the_data_too(draw: Callable[[], None], moves: str, tmp_path: Path) -> None:
    state = make_with_data(tmp_path / "position")
    file: Any = state._recovery._positions
    assert file.read()[0] == wanted_of(state)
    for at in range(1, 9):
        state.stream.at += moves == "before the pass"
        state.stream.fill = bytes(at * 500)
        backward(state)
        assert file.read()[at] == wanted_of(state)
        draw()
        state.stream.at += moves == "behind the pass"
        state.optimizer.step()
        state.commit()
        assert file.read()[at] == wanted_of(state)
        assert {at - 1, at} <= set(file.read())


def test_a_place_is_asked_for_once_where_python_puts_it_down(tmp_path: Path) -> None:
    """A loader may take milliseconds to return it."""
    state, asked = make_with_data(tmp_path / "position"), [0]
    random.seed(5)
    random.gauss(0, 1)
    tell = state.stream.state_dict

    def counted() -> Any:
        asked[0] += 1
        return tell()

    state.stream.state_dict = counted
    backward(state)
    assert asked == [1]
    assert state._recovery.position(1) == wanted_of(state)


def test_a_place_that_is_none_any_more_is_not_taken_for_the_one_before(tmp_path: Path) -> None:
    state = make_with_data(tmp_path / "position")
    backward(state)
    state.stream.fill = bytes(SLOT_BYTES)
    state.optimizer.step()
    state.commit()
    assert state._recovery.position(1) == pack(state._recovery._rng.capture())


def test_epochs_that_are_asked_for_later_are_recorded_from_then_on(tmp_path: Path) -> None:
    state = make(tmp_path / "position")
    file: Any = state._recovery._positions
    step(state)
    assert file.read()[1] == pack(state._recovery._rng.capture())
    for epoch in state.epochs(3):
        step(state)
        assert state._recovery.shows_steps
        assert file.read()[state.step] == wanted_of(state)
        state._recovery.parts.epochs.now = 7
        assert state._recovery.return_to(state.step) == ""
        assert state.epoch == epoch


def test_a_place_without_room_costs_itself_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = make_with_data(tmp_path / "position")
    file: Any = state._recovery._positions
    state.stream.fill = bytes(SLOT_BYTES)
    backward(state)
    assert file.read()[1] == pack(state._recovery._rng.capture())
    assert "have room" in caplog.text


def test_an_error_in_telling_a_place_comes_to_the_script(tmp_path: Path) -> None:
    state = make_with_data(tmp_path / "position")
    del state.stream.fill
    with pytest.raises(AttributeError, match="fill"):
        backward(state)


def test_a_spare_number_at_the_start_passes(tmp_path: Path) -> None:
    random.seed(5)
    random.gauss(0, 1)
    state = make(tmp_path / "position")
    file: Any = state._recovery._positions
    assert file.read()[0] == pack(state._recovery._rng.capture())
    wanted = random.gauss(0, 1)
    assert state._recovery.return_to(0) == ""
    assert random.gauss(0, 1) == wanted
    step(state)
    assert file.read()[1] == pack(state._recovery._rng.capture())


def test_another_bit_generator_under_numpy_is_seen(tmp_path: Path) -> None:
    legacy: Any = np.random  # some of numpy's stubs lack these two
    state = make(tmp_path / "position")
    before = legacy.get_bit_generator()
    step(state)
    try:
        legacy.set_bit_generator(np.random.MT19937(5))
        step(state)
        wanted = np.random.rand()
        assert state._recovery.return_to(2) == ""
        assert np.random.rand() == wanted
    finally:
        legacy.set_bit_generator(before)
    step(state)
    assert state._recovery.return_to(3) == ""


def test_what_a_killed_process_half_copied_is_not_taken_for_whole(tmp_path: Path) -> None:
    """Both ends of each twister are right, but its middle is not: a new process must write all of it."""
    path = tmp_path / "position"
    first = make(path)
    step(first)
    file: Any = first._recovery._positions
    second = make(path)
    second.step = 1
    for slot in range(5):
        file._bytes[slot * SLOT_BYTES + 1000 : slot * SLOT_BYTES + 1100] = bytes(100)
    backward(second)
    second.commit()
    assert file.read()[2] == pack(second._recovery._rng.capture())


def test_conditions_are_those_of_the_hooks_in_python(tmp_path: Path) -> None:
    state = make(tmp_path / "position")
    assert state._recovery.condition() is Condition.CLEAN
    backward(state)
    state.optimizer.step()
    assert state._recovery.condition() is Condition.TORN  # the second optimizer has not stepped
    state.second.step()
    assert state._recovery.condition() is Condition.STEPPED
    state.second.step()
    assert state._recovery.condition() is Condition.TORN
    state.commit()
    assert state._recovery.condition() is Condition.CLEAN
    with pytest.raises(ZeroDivisionError):
        state.optimizer.step(lambda: 1 / 0)
    assert state._recovery.condition() is Condition.CLEAN  # the tensors are untouched
    with state._recovery.restoring(1):
        assert state._recovery.condition() is Condition.TORN
    assert state._recovery.condition() is Condition.CLEAN


def test_the_core_commits_up_to_the_step_that_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole: list[int] = []
    commit = StateRecovery.commit

    def counted(recovery: StateRecovery, loss: float | torch.Tensor | None = None) -> None:
        whole.append(recovery.step + 1)
        commit(recovery, loss)

    monkeypatch.setattr(StateRecovery, "commit", counted)
    state = make(tmp_path / "position")
    for _ in range(6):  # in the first steps, each optimizer's step can be undone
        step(state)
    whole.clear()
    state._recovery.copy_at(9)
    for _ in range(5):
        step(state)
    state._recovery.copy_at(NEVER)
    step(state)
    assert state.step == 12
    assert whole == [9, 10, 11]


def test_a_step_that_the_script_set_is_believed(tmp_path: Path) -> None:
    state = make(tmp_path / "position")
    state.step = 40
    backward(state)
    assert 41 in PositionFile(str(tmp_path / "position")).read()
    with pytest.raises(TypeError):
        state.step = "forty"  # type: ignore[assignment]


def test_a_model_outlives_its_state_and_can_be_copied(tmp_path: Path) -> None:
    state = make(tmp_path / "position")
    step(state)
    model = state.model
    other = copy.deepcopy(model)
    del state
    gc.collect()
    for _ in range(3):
        model(torch.randn(8, 4)).sum().backward()
        other(torch.randn(8, 4)).sum().backward()


def test_a_forked_child_leaves_the_file_alone(tmp_path: Path) -> None:
    state = make(tmp_path / "position")
    step(state)
    file = PositionFile(str(tmp_path / "position"))
    before = file.read()
    child = os.fork()
    if child == 0:
        try:
            step(state)
        finally:
            os._exit(0 if state.step == 2 and 2 in state._recovery._positions.read() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert file.read() == before


def test_a_forked_child_has_a_file_of_its_own(tmp_path: Path) -> None:
    """Every warm process is such a child: it is forked from a template."""
    make(tmp_path / "parents")
    child = os.fork()
    if child == 0:
        try:
            state = make(tmp_path / "childs")
            step(state)
        finally:
            os._exit(0 if 1 in PositionFile(str(tmp_path / "childs")).read() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_no_function_without_its_number() -> None:
    assert not core().taskd_pulse_method(-1)
    assert not core().taskd_pulse_method(6)


WRITER = Path(__file__).with_name("programs") / "commits.py"


def test_a_killed_process_leaves_only_whole_entries(launcher: Launcher, tmp_path: Path) -> None:
    path = tmp_path / "position"
    chance = random.Random(3)
    for _ in range(2):
        writer = launcher.start(["python", WRITER, path], env=ENVIRONMENT)
        while not path.exists() or path.stat().st_size != 5 * SLOT_BYTES:
            os.sched_yield()
        file = PositionFile(str(path))
        while max(file.read(), default=0) < chance.randint(500, 3000):
            os.sched_yield()
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        reader = make(tmp_path / "mine")
        for at in file.read():
            assert PositionFile(str(path)).read()[at]
            (tmp_path / "mine").write_bytes(path.read_bytes())
            assert reader._recovery.return_to(at) == ""
            found = (torch.rand(1), random.random())
            torch.manual_seed(at - 1)
            random.seed(at - 1)
            assert at == 0 or found == (torch.rand(1), random.random())
        path.unlink()
