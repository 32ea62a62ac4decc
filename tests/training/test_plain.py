"""Attributes of modules that are no buffers: sent if they have changed, put back if a step is done again."""

import collections
import logging
from typing import Any

import pytest
import torch

from taskd.adaptors.training.parts.plain import Plain
from taskd.adaptors.training.state import TrainState
from taskd.wire.kinds import JobRank


class Net(torch.nn.Module):
    """Attributes of most kinds that scripts keep in a module."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
        self.tau = 1.0
        self.seen: dict[str, Any] = {"passes": 0, "last": [0]}
        self.mean = torch.zeros(2)
        self.cache: torch.Tensor | None = None
        self.shape: tuple[int, ...] = ()
        self.recent: collections.deque[float] = collections.deque(maxlen=2)
        self.last_loss = 0.0
        self.rate = 0.1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.cache is None:
            self.cache = torch.ones(2)
        self.shape = tuple(x.shape)
        self.tau *= 0.9
        self.seen["passes"] += 1
        self.seen["last"].append(len(self.seen["last"]))
        y = self.linear(x)
        self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
        self.recent.append(self.tau)
        self.last_loss = float(y.detach().sum()) * self.rate
        return y * self.tau * self.cache


def make(net: torch.nn.Module | None = None) -> TrainState:
    torch.manual_seed(1)
    net = net or Net()
    return TrainState(model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1))


def forward(state: TrainState, step: int) -> None:
    state.optimizer.zero_grad()
    state.model(torch.full((4, 2), float(step))).sum().backward()


def step(state: TrainState, step: int) -> None:
    forward(state, step)
    state.optimizer.step()
    state.commit()


def values(state: TrainState) -> list[object]:
    net = state.model
    return [net.tau, net.seen, net.mean.tolist(), net.shape, *(p.tolist() for p in net.parameters())]


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5])
def test_a_step_that_is_done_again_moves_them_once(steps: int) -> None:
    state, calm = make(), make()
    for one in (state, calm):
        one.model(torch.ones(4, 2))  # a pass in the set-up
        one._recovery.begin(JobRank(0))
        for number in range(steps):
            step(one, number)
    forward(state, steps)
    state._recovery.rollback()
    for one in (state, calm):
        step(one, steps)
    assert values(state) == values(calm)


def test_a_new_process_takes_those_that_have_changed() -> None:
    donor, newcomer = make(), make()
    donor._recovery.begin(JobRank(0))
    newcomer._recovery.declare_empty()
    newcomer.model.rate = donor.model.rate = 0.2
    for number in range(5):
        step(donor, number)
    changed = donor._recovery.parts.plain.changed()
    assert {name for _, name, _, _ in changed} == {"tau", "seen", "mean", "cache", "shape", "last_loss", "rate"}
    newcomer._recovery.parts.plain.put(changed)
    assert values(newcomer)[:4] == values(donor)[:4]
    assert newcomer._recovery.parts.plain.changed() == changed


def test_a_torn_process_takes_those_of_the_step_that_is_done_again() -> None:
    """It makes no difference if its peers have changed them by then."""
    for steps in (0, 5):
        donor, torn = make(), make()
        for one in (donor, torn):
            one._recovery.begin(JobRank(0))
            for number in range(steps):
                step(one, number)
        before = [repr(value) for value in values(donor)[:4]]
        forward(torn, steps)
        torn._recovery.parts.plain.put(donor._recovery.parts.plain.changed())
        assert [repr(value) for value in values(torn)[:4]] == before


def test_what_differed_before_stays_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    donor, newcomer = make(), make()
    donor.model.tau = 0.5
    donor._recovery.begin(JobRank(0))
    newcomer._recovery.declare_empty()
    step(donor, 0)
    newcomer._recovery.parts.plain.put(donor._recovery.parts.plain.changed())
    assert newcomer.model.tau == 1.0
    assert "model.tau has been changed" in caplog.text


def test_those_that_move_are_told_once_with_the_line_that_reads_them(caplog: pytest.LogCaptureFixture) -> None:
    state = make()
    state._recovery.begin(JobRank(0))
    for number in range(2):
        step(state, number)
    assert not caplog.records
    for number in range(2, 6):
        step(state, number)
    lost, kept = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert lost.startswith(f"model.recent (Net, {__file__}:39) is changed by the training"), lost
    assert "that of its set-up" in lost
    assert kept.startswith(f"model.tau (Net, {__file__}:34) (and 2 more) is changed by the training"), kept
    assert "a peer's" in kept
    state._recovery.rollback()
    assert len(caplog.records) == 2


class Scheduled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
        self.drop = 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(self.linear(x), self.drop)


def test_what_changes_between_commit_and_forward_stays_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    state = make(Scheduled())
    state._recovery.begin(JobRank(0))
    for number in range(3):
        step(state, number)
        state.model.drop *= 0.9
    assert "model.drop (Scheduled" in caplog.text
    assert "between a commit and the next forward pass" in caplog.text
    forward(state, 3)
    now = state.model.drop
    state._recovery.rollback()
    assert state.model.drop == now


def test_what_changes_late_is_told_when_a_step_is_done_again(caplog: pytest.LogCaptureFixture) -> None:
    state = make(Scheduled())
    state._recovery.begin(JobRank(0))
    for number in range(8):
        step(state, number)
    state.model.drop = 0.1
    forward(state, 8)
    assert not caplog.records
    for _ in range(2):
        state._recovery.rollback()
    assert [record.getMessage()[:31] for record in caplog.records] == ["model.drop (Scheduled, " + __file__[:8]]


def test_constants_cost_nothing_after_the_first_steps(caplog: pytest.LogCaptureFixture) -> None:
    state = make(Scheduled())
    state._recovery.begin(JobRank(0))
    for number in range(5):
        step(state, number)
    assert not state._recovery.parts.plain.watching
    assert not state.model._forward_pre_hooks, "taken off"
    assert state._recovery.parts.plain.changed() == []
    assert not caplog.records


def test_what_cannot_be_looked_at_is_left_alone() -> None:
    class Odd(Scheduled):
        def __init__(self) -> None:
            super().__init__()
            self.call = lambda: 0
            self.whole = {1: {2: self.linear.weight}}
            self.self_made: list[Any] = [[]]
            self.self_made.append(self.self_made)
            self.large = torch.ones(100, 100)
            self.far = torch.empty(2, device="meta")

    state = make(Odd())
    state._recovery.begin(JobRank(0))
    for number in range(4):
        step(state, number)
    assert state._recovery.parts.plain.changed() == []


def test_without_a_session_nothing_is_looked_at() -> None:
    net = Net()
    plain = Plain({"model": net})
    net.tau = 2.0
    assert plain.changed() == []


def test_modules_that_somebody_else_keeps_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    state = make(torch.nn.Sequential(Net(), Net()))
    state._recovery.parts.plain.leave_out([state.model[0]])
    state._recovery.begin(JobRank(0))
    for number in range(4):
        step(state, number)
    before = [net.tau for net in state.model]
    forward(state, 4)
    after = [net.tau for net in state.model]
    state._recovery.rollback()
    assert [net.tau for net in state.model] == [after[0], before[1]]
    assert {name for name, *_ in state._recovery.parts.plain.changed()} == {"model.1"}
    assert "model.1" in caplog.text
    assert "model.0" not in caplog.text
