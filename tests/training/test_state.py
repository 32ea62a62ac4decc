"""Condition of a state at each moment of a step, and exact returns to a step."""

import itertools
import logging
import random
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DistributedSampler, TensorDataset

from taskd.adaptors.training.positions import rng
from taskd.adaptors.training.positions.position_file import CAPACITY_BYTES
from taskd.adaptors.training.positions.rng_memory import SPARE, torch_state
from taskd.adaptors.training.state import TrainState
from taskd.errors import ConfigError
from taskd.wire.messages import Condition


def make(**more: Any) -> TrainState:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return TrainState(model=model, optimizer=optimizer, **more)


def backward(state: TrainState) -> None:
    state.optimizer.zero_grad()
    state.model(torch.randn(8, 4)).square().mean().backward()


def step(state: TrainState) -> None:
    backward(state)
    state.optimizer.step()
    state.commit()


class Counter:
    def __init__(self, filler: bytes = b"") -> None:
        self.state: dict[str, Any] = {"at": 0, "filler": filler}

    def state_dict(self) -> dict[str, Any]:
        return dict(self.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = dict(state)


def test_parts_are_attributes_and_none_is_left_out() -> None:
    state = make(scheduler=None)
    assert isinstance(state.model, nn.Module)
    with pytest.raises(AttributeError, match="no part 'scheduler'; it has model, optimizer"):
        state.scheduler  # noqa: B018


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"ema": 3}, "'ema' is a int, expected something with state_dict"),
        ({"loader": [1, 2]}, "'loader' is a list.*or a DataLoader"),
        ({"commit": Counter()}, "uses the name 'commit' itself"),
        ({"step": Counter()}, "uses the name 'step' itself"),
    ],
)
def test_wrong_parts_are_named(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**parts)


def test_an_optimizer_is_needed() -> None:
    with pytest.raises(ConfigError, match=r"at least one torch\.optim\.Optimizer"):
        TrainState(model=nn.Linear(1, 1))


class Wrapped(torch.optim.Optimizer):
    """Optimizer like accelerate's: an optimizer by type that never called `Optimizer.__init__`."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def step(self, closure: Any = None) -> Any:
        return self.optimizer.step(closure)

    def state_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = self.optimizer.state_dict()
        return found

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state)


def test_a_wrapped_optimizer_is_seen_through() -> None:
    model = nn.Linear(2, 2)
    wrapped = Wrapped(torch.optim.SGD(model.parameters(), lr=0.1))
    state = TrainState(model=model, optimizer=wrapped)
    assert state.optimizer is wrapped
    wrapped.step()
    assert state._recovery.condition() is Condition.STEPPED
    with pytest.raises(ConfigError, match=r"'optimizer' is a Wrapped without an optimizer's hooks"):
        TrainState(model=model, optimizer=Wrapped(None))


def test_condition_over_a_step() -> None:
    state = make()
    seen: list[Condition] = []
    state.optimizer.register_step_pre_hook(lambda *_: seen.append(state._recovery.condition()))
    assert state._recovery.condition() is Condition.CLEAN
    backward(state)
    assert state._recovery.condition() is Condition.CLEAN
    state.optimizer.step()
    assert seen == [Condition.TORN]
    assert state._recovery.condition() is Condition.STEPPED
    state.optimizer.step()
    assert state._recovery.condition() is Condition.TORN
    state.commit()
    assert (state.step, state._recovery.condition()) == (1, Condition.CLEAN)


def test_a_step_that_breaks_off_is_torn_for_good() -> None:
    state = make()
    backward(state)
    state.model[0].weight.grad = torch.ones(4, 4).to_sparse()  # AdamW raises in the middle of its step
    with pytest.raises(RuntimeError):
        state.optimizer.step()
    assert state._recovery.condition() is Condition.TORN


def test_two_optimizers_must_both_have_stepped() -> None:
    other = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    state = make(other=other)
    backward(state)
    state.optimizer.step()
    assert state._recovery.condition() is Condition.TORN
    other.step()
    assert state._recovery.condition() is Condition.STEPPED


def test_newcomer_is_empty_until_restored() -> None:
    state = make()
    state._recovery.declare_empty()
    assert state._recovery.condition() is Condition.EMPTY
    with state._recovery.restoring(5):
        assert state._recovery.condition() is Condition.EMPTY
    assert (state.step, state._recovery.condition()) == (5, Condition.CLEAN)


def test_a_restore_that_breaks_off_is_torn() -> None:
    state = make()
    with pytest.raises(KeyError), state._recovery.restoring(5):
        raise KeyError
    assert (state.step, state._recovery.condition()) == (0, Condition.TORN)


def test_rollback_undoes_the_forward_pass() -> None:
    state = make()
    step(state)
    before = [buffer.clone() for buffer in state.model.buffers()]
    state.model(torch.randn(8, 4))
    state.model(torch.randn(8, 4))
    assert not torch.equal(before[0], state.model[1].running_mean)
    assert state._recovery.condition() is Condition.CLEAN
    state._recovery.rollback()
    assert all(torch.equal(a, b) for a, b in zip(before, state.model.buffers(), strict=True))


def test_a_replaced_buffer_cannot_be_rolled_back() -> None:
    state = make()
    state.model(torch.randn(8, 4))
    state.model[1].running_mean = torch.ones(4)
    assert state._recovery.condition() is Condition.TORN


def test_evaluation_touches_nothing() -> None:
    state = make()
    state._recovery.begin()
    before = state._recovery._positions.read()
    state.model.eval()
    state.model(torch.randn(8, 4))
    assert state._recovery._positions.read() == before


@pytest.mark.parametrize("stepped_already", [False, True])
def test_adopt_brings_the_scheduler_forward_once(stepped_already: bool) -> None:
    state = make()
    scheduler = torch.optim.lr_scheduler.StepLR(state.optimizer, 1, 0.5)
    state = TrainState(model=state.model, optimizer=state.optimizer, scheduler=scheduler)
    state._recovery.begin()
    for _ in range(2):
        backward(state)
        state.optimizer.step()
        scheduler.step()
        state.commit()
    backward(state)
    state.optimizer.step()
    if stepped_already:
        scheduler.step()
    assert state._recovery.condition() is Condition.STEPPED
    state._recovery.adopt()
    assert (state.step, scheduler.last_epoch, state._recovery.condition()) == (3, 3, Condition.CLEAN)


def test_of_its_set_up_a_newcomer_knows_the_random_numbers(tmp_path: Path) -> None:
    """Its predecessor may have died before it recorded any. Records in the file have priority."""
    state = make()
    state._recovery.attach(str(tmp_path / "position"))
    state._recovery.declare_empty()
    first = draw()
    assert state._recovery.return_to(0, lent=b"of a donor") == ""
    assert draw() == first
    assert "random numbers of step 1 not known" in state._recovery.return_to(1)


def draw() -> tuple[object, ...]:
    return (
        random.random(),
        random.gauss(0, 1),
        float(np.random.normal()),
        float(np.random.rand()),
        torch.rand(3).tolist(),
        torch.randn(1).item(),
    )


@pytest.mark.parametrize("lead", range(3))
def test_random_numbers_come_back(lead: int) -> None:
    state = make()
    for _ in range(lead):  # an odd number of normal values leaves one in store, in python and in numpy
        random.gauss(0, 1)
        np.random.normal()
    state.commit()
    first = draw()
    draw()
    assert state._recovery.return_to(1) == ""
    assert draw() == first


def test_the_fast_reading_is_in_use_and_equals_the_public_one() -> None:
    capture = rng.RngCapture()
    np.random.random()
    for draws in range(3):  # an odd number of normal values leaves one in store
        for _ in range(650 * draws):  # over a refill of the twister
            np.random.normal()
            random.gauss(0, 1)
        torch.randn(1 + 2 * draws, dtype=torch.float64)
        torch.randn(1 + 700 * draws)
        views = capture.capture()
        python, gauss, numpy, spare, cpu = map(bytes, views)
        assert [type(view) for view in views] == [memoryview, bytes, memoryview, memoryview, memoryview]
        assert python == rng._python_slow()
        assert (numpy, SPARE.unpack(spare)[0]) == (rng._numpy_slow()[0], SPARE.unpack(rng._numpy_slow()[1])[0])
        assert torch_state(cpu) == torch.default_generator.get_state().numpy().tobytes()
        assert (gauss == rng._GAUSS.pack(0, 0.0)) == (random._inst.gauss_next is None)  # type: ignore[attr-defined]


def test_the_slow_reading_comes_back_too() -> None:
    state = make()
    capture = state._recovery._rng
    assert isinstance(capture, rng.RngCapture)
    capture.capture()
    capture._python = capture._torch = capture._same = None
    capture._numpy_bits = None
    assert all(isinstance(part, bytes) for part in capture.capture())
    state.commit()
    first = draw()
    assert state._recovery.return_to(1) == ""
    assert draw() == first


def test_a_step_done_again_has_its_newest_position() -> None:
    counter = Counter()
    state = make(data={"loader": counter})
    for at in (1, 2):  # in the second round, the first commit of step 1 is in the past
        state.step = 0
        counter.state["at"] = at
        state.model(torch.randn(8, 4))
        counter.state["at"] = at if at == 2 else 7
        state.commit()
    assert state._recovery.return_to(1) == ""
    assert counter.state["at"] == 2


def test_two_committed_steps_and_a_tentative_one_are_kept(tmp_path: Path) -> None:
    counter = Counter()
    state = make(data={"loader": counter})
    state._recovery.attach(str(tmp_path / "position"))
    state._recovery.begin()
    for at in range(1, 4):
        counter.state["at"] = at
        step(state)
    counter.state["at"] = 4
    state.model(torch.randn(8, 4))
    for wanted in (2, 3, 4):
        counter.state["at"] = -1
        assert state._recovery.return_to(wanted) == ""
        assert counter.state["at"] == wanted
    assert "not known" in state._recovery.return_to(1)
    other = make(data={"loader": Counter()})
    other._recovery.attach(str(tmp_path / "position"))
    assert other._recovery.return_to(3) == ""
    assert other.loader.state["at"] == 3


def test_a_data_position_too_large_is_left_out_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    state = make(data={"loader": Counter(b"x" * CAPACITY_BYTES)})
    with caplog.at_level(logging.WARNING):
        state.commit()
        state.commit()
    assert len(caplog.records) == 1
    assert f"takes {CAPACITY_BYTES + 31} bytes, and" in caplog.records[0].message
    first = random.random()
    assert state._recovery.return_to(2) == "the data position of loader was not recorded"
    assert random.random() == first


def test_a_distributed_sampler_goes_by_its_epoch() -> None:
    sampler: DistributedSampler[Any] = DistributedSampler(TensorDataset(torch.ones(8)), num_replicas=2, rank=0)
    state = make(sampler=sampler)
    sampler.set_epoch(3)
    state.commit()
    sampler.set_epoch(9)
    assert state._recovery.return_to(1) == ""
    assert sampler.epoch == 3


def test_position_parts_are_not_replicated() -> None:
    state = make(replicated={"ema": Counter(), "loader": Counter()}, data={"stream": Counter(), "model_ema": Counter()})
    assert list(state._recovery.parts.positions) == ["stream", "model_ema"]
    assert list(state._recovery.parts.replicated) == ["model", "optimizer", "ema", "loader"]


def test_on_commit_sees_each_step_but_not_an_adopted_one() -> None:
    state = make()
    seen: list[int] = []
    state._recovery.on_commit = seen.append
    step(state)
    backward(state)
    state.optimizer.step()
    state._recovery.adopt()
    step(state)
    assert seen == [1, 3]


def test_ordered_state_of_a_module_comes_back_ordered() -> None:
    assert isinstance(make().model.state_dict(), OrderedDict)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_stateful_loader_goes_on_with_the_next_batch() -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    data = TensorDataset(torch.arange(64))
    loader = StatefulDataLoader(data, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(3))
    state = make(loader=loader)
    state._recovery.begin()
    batches, seen = iter(loader), []
    for _ in range(6):
        seen.append(next(batches)[0].tolist())
        state.commit()
    for back_to in (5, 6):
        fresh = StatefulDataLoader(data, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(9))
        other = make(loader=fresh)
        other._recovery._positions = state._recovery._positions
        assert other._recovery.return_to(back_to) == ""
        again = [batch[0].tolist() for batch in fresh]
        assert again[: 6 - back_to] == seen[back_to:]
        assert sorted(itertools.chain(*seen[:back_to], *again)) == list(range(64))


def test_a_trainer_says_itself_when_a_forward_pass_has_ended() -> None:
    counter = Counter()
    state = make(data={"counter": counter})
    recovery = state._recovery
    recovery.by_trainer = True
    recovery.begin()
    backward(state)
    assert not recovery.position(1)
    counter.state["at"] = 1
    recovery.record_ahead()
    assert recovery.position(1)
    state.optimizer.step()
    assert recovery.condition(RuntimeError("a peer is gone")) is Condition.STEPPED
    counter.state["at"] = 9
    recovery.adopt()
    assert (state.step, counter.state["at"]) == (1, 1)
