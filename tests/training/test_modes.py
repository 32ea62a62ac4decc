"""An evaluation that a fault interrupts leaves no model in evaluation mode. Modes set by the script stay."""

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from taskd.adaptors.training.state import TrainState
from taskd.wire.kinds import JobRank


def make() -> TrainState:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(2))
    state = TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    state._recovery.begin(JobRank(0))
    return state


def step(state: TrainState) -> None:
    state.optimizer.zero_grad()
    state.model(torch.randn(4, 2)).sum().backward()
    state.optimizer.step()
    state.commit()


def modes(state: TrainState) -> list[bool]:
    return [module.training for module in state.model.modules()]


@pytest.mark.parametrize("pulse", [True, False], ids=["in the core", "in Python"])
@pytest.mark.parametrize("passes", [0, 2])
def test_an_interrupted_evaluation_is_left(tmp_path: Path, passes: int, *, pulse: bool) -> None:
    state = make()
    if pulse:
        state._recovery.attach(str(tmp_path / "position"))
    step(state)
    state.model.eval()
    with torch.no_grad():
        for _ in range(passes):
            state.model(torch.randn(4, 2))
    state._recovery.drop_step()
    assert modes(state) == [True, True, True, True]


def test_gradients_are_enabled_again() -> None:
    state = make()
    step(state)
    torch.set_grad_enabled(False)
    try:
        state.model.eval()(torch.randn(4, 2))
        state._recovery.drop_step()
        assert torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)


def test_what_is_frozen_stays_so() -> None:
    state = make()
    state.model[2].eval()
    step(state)
    state.model.eval()
    state._recovery.drop_step()
    assert modes(state) == [True, True, True, False]
    state.model.train()
    step(state)
    state._recovery.drop_step()
    assert modes(state) == [True, True, True, True], "nothing is put back while it trains"
    with torch.no_grad():
        state.model.eval()(torch.randn(4, 2))
    state.model.train()[1].eval()
    step(state)
    state.model.eval()
    state._recovery.drop_step()
    assert modes(state) == [True, True, False, True], "as after the last evaluation"


def test_a_model_that_trains_in_evaluation_mode_is_left_as_it_is() -> None:
    state = make()
    step(state)
    state.model.eval()
    step(state)
    state._recovery.drop_step()
    assert modes(state) == [False, False, False, False]


def test_a_model_in_which_nothing_was_trained_is_left_as_it_is() -> None:
    state = make()
    state.model.eval()
    state._recovery.drop_step()
    assert modes(state) == [False, False, False, False]


def test_a_pass_without_gradients_does_not_train(tmp_path: Path) -> None:
    """The same holds in the core: a validation without `model.eval()` is no next step."""
    state = make()
    state._recovery.attach(str(tmp_path / "position"))
    step(state)
    with torch.no_grad():
        state.model(torch.randn(4, 2))
    assert state._recovery.between_steps
    state.model(torch.randn(4, 2))
    assert not state._recovery.between_steps


def test_a_copy_of_the_model_trains_alone() -> None:
    state = make()
    step(state)
    other = copy.deepcopy(state.model)
    other.eval()
    state._recovery.drop_step()
    assert not other.training
    assert state.model.training


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_an_evaluation_of_what_the_wrapper_holds_is_left_too() -> None:
    """A script evaluates the module inside DDP: the wrapper's own flag stays."""
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5))
    model = torch.nn.parallel.DistributedDataParallel(net)
    state = TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    state._recovery.begin(JobRank(0))
    model(torch.ones(1, 2)).sum().backward()
    net.eval()
    state._recovery.drop_step()
    assert all(module.training for module in model.modules())


@pytest.mark.usefixtures("alone")
def test_a_part_that_the_script_has_frozen_stays_so() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5))
    model = torch.nn.parallel.DistributedDataParallel(net)
    state = TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    state._recovery.begin(JobRank(0))
    model(torch.ones(1, 2)).sum().backward()
    net[1].eval()
    state._recovery.drop_step()
    assert [module.training for module in net] == [True, False]
