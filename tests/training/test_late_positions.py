"""Positions that move after the forward pass: detected, recorded again in the backward pass, or refused."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from taskd.adaptors.training.positions.late import is_ahead
from taskd.adaptors.training.positions.position_file import PositionEntry, PositionKind
from taskd.adaptors.training.script.rest import Rest
from taskd.adaptors.training.state import TrainState
from taskd.wire.kinds import JobRank
from taskd.wire.messages import Condition


class Carried:
    """Part of the script's with a state of its own."""

    def __init__(self) -> None:
        self.value = 0

    def move(self) -> None:
        self.value += 1

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


def nothing() -> None:
    """Move nothing."""


class Job:
    """One rank, with its position file if there is a folder. Each of its steps calls the three functions."""

    def __init__(self, folder: Path | None, *, seed: int | None = None, agent: bool = True) -> None:
        torch.manual_seed(0)
        self.part = Carried()
        self.model = nn.Linear(3, 3)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.state = TrainState(model=self.model, optimizer=self.optimizer, data={"part": self.part}, seed=seed)
        self.recovery = self.state._recovery
        if folder is not None:
            self.recovery.attach(str(folder / "position"))
        self.recovery.begin(JobRank(0))
        if agent:
            self.recovery.late.begin()
        self.before = self.behind_forward = self.behind_step = nothing

    def step(self, times: int = 1, *, commits: bool = True) -> "Job":
        for _ in range(times):
            self.before()
            loss = self.model(torch.ones(2, 3)).square().mean()
            self.behind_forward()
            loss.backward()
            self.optimizer.step()
            if commits:
                self.behind_step()
                self.state.commit()
        return self

    def newcomer(self, folder: Path) -> "Job":
        """Return a process that takes this rank over. It has only the position file."""
        other = Job.__new__(Job)
        other.__dict__.update(Job(None).__dict__)
        other.recovery.attach(str(folder / "position"))
        return other


@pytest.fixture(params=["file", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path if request.param == "file" else None


def set_at(job: Job, at: str, move: Callable[[], Any]) -> None:
    setattr(job, at, move)


@pytest.mark.parametrize("at", ["before", "behind_forward"])
def test_of_a_step_that_counts_a_new_process_has_the_place_of_its_commit(tmp_path: Path, at: str) -> None:
    job = Job(tmp_path)
    set_at(job, at, job.part.move)
    job.step(3).step(commits=False)
    other = job.newcomer(tmp_path)
    assert other.recovery.late.why_stale(4) == ""
    assert other.recovery.return_to(4) == ""
    assert other.part.value == job.part.value == 4


@pytest.mark.parametrize("steps", [2, 4])
def test_who_takes_a_rank_over_does_as_that_rank_did(tmp_path: Path, steps: int) -> None:
    """This holds from its first step on, although it has not yet seen by itself which parts move."""
    job = Job(tmp_path)
    job.behind_forward = job.part.move
    job.step(steps).step(commits=False)
    other = job.newcomer(tmp_path)
    other.recovery.late.begin()
    with other.recovery.restoring(steps):
        pass
    assert other.recovery.return_to(steps) == ""
    other.behind_forward = other.part.move
    other.step(commits=False)
    third = job.newcomer(tmp_path)
    assert third.recovery.late.why_stale(steps + 1) == ""
    assert third.recovery.return_to(steps + 1) == ""
    assert third.part.value == steps + 1


def test_random_numbers_of_a_loss_are_put_down_too(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.behind_forward = random.random  # type: ignore[assignment]
    job.step(3).step(commits=False)
    wanted = random.random()
    other = job.newcomer(tmp_path)
    assert other.recovery.late.why_stale(4) == ""
    assert other.recovery.return_to(4) == ""
    assert random.random() == wanted


def test_what_moves_behind_the_optimizer_is_refused(folder: Path | None, caplog: pytest.LogCaptureFixture) -> None:
    """The refusal is also announced in advance, once."""
    job = Job(folder)
    job.behind_step = job.part.move
    job.step(3).step(commits=False)
    stale = job.recovery.late.why_stale(4)
    assert stale.startswith(f"in the training of the TrainState made at {__file__}:")
    assert "part of the data changes between the end of the forward pass and the commit" in stale
    assert job.recovery.late.why_stale(3) == "", "it is committed"
    (record,) = caplog.records
    assert "part of the data changes behind the backward pass: if a rank dies" in record.getMessage()


def test_random_numbers_that_are_drawn_behind_the_optimizer_refuse_nobody(
    folder: Path | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Libraries draw from the global generators too, for purposes of their own."""
    job = Job(folder)
    job.behind_step = random.random  # type: ignore[assignment]
    job.step(3).step(commits=False)
    assert job.recovery.late.why_stale(4) == ""
    assert not job.recovery.late.lags(4, Rest())
    assert not caplog.records


def test_with_a_seed_random_numbers_are_those_of_the_step(folder: Path | None) -> None:
    job = Job(folder, seed=1)
    job.behind_step = random.random  # type: ignore[assignment]
    job.step(3).step(commits=False)
    assert job.recovery.late.why_stale(4) == ""


def test_of_a_first_step_nothing_is_known(folder: Path | None) -> None:
    """It may move, so it is refused. A library's part moves when a batch is fetched."""
    job = Job(folder).step(commits=False)
    assert job.recovery.late.why_stale(1).startswith("it is not known whether in the training of the TrainState ")
    loader: Any = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(2)))
    state = TrainState(model=job.model, optimizer=job.optimizer, loader=loader, seed=1)
    state._recovery.begin(JobRank(0))
    job.model(torch.ones(2, 3)).sum().backward()
    assert state._recovery.late.why_stale(1) == ""


def test_a_step_that_counts_has_what_its_process_holds(folder: Path | None) -> None:
    """The optimizer has stepped; only the commit is missing."""
    job = Job(folder)
    job.behind_forward = job.part.move
    job.recovery.late.end()  # as if nothing were detected: the position recorded ahead is older
    job.step(1)
    job.step(1, commits=False)
    with pytest.raises(ValueError, match="invalid literal") as left:
        left_then_commits(job.state)
    assert job.recovery.condition(left.value) is Condition.STEPPED
    job.recovery.adopt()
    assert job.part.value == 2
    assert job.recovery.return_to(2) == ""
    assert job.part.value == 2


def test_a_step_whose_rest_may_move_it_is_torn(folder: Path | None) -> None:
    job = Job(folder)
    job.behind_step = job.part.move
    job.step(3).step(commits=False)
    with pytest.raises(ValueError, match="invalid literal") as left:
        left_then_moves(job.state, job.part)
    assert job.recovery.condition(left.value) is Condition.TORN


def left_then_commits(state: TrainState) -> None:
    int("no number")
    state.commit()


def left_then_moves(state: TrainState, part: Carried) -> None:
    int("no number")
    part.move()
    state.commit()


def test_a_trainers_adapter_is_responsible_for_its_moments(folder: Path | None) -> None:
    job = Job(folder)
    job.recovery.by_trainer = True
    job.behind_step = job.part.move
    job.step(3).step(commits=False)
    assert job.recovery.late.why_stale(4) == ""
    assert not job.recovery.late.lags(4, Rest())


def test_nothing_is_left_at_the_model(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.behind_forward = job.part.move
    job.step(3)
    assert job.model.weight._backward_hooks
    job.recovery.late.end()
    assert not job.model.weight._backward_hooks


def test_a_step_that_was_committed_is_not_only_ahead(tmp_path: Path) -> None:
    """If nothing has moved, the core records no committed position."""
    job = Job(tmp_path)
    job.before = job.part.move
    job.step(1).step(commits=False)
    assert job.newcomer(tmp_path).recovery.late.why_stale(1) == ""
    late = Job(tmp_path)
    late.before = late.part.move
    late.step(9)
    late.behind_step = late.part.move
    late.step(1)
    late.behind_step = nothing
    late.step(1).step(commits=False)
    assert late.newcomer(tmp_path).recovery.late.why_stale(11) == ""


@pytest.mark.parametrize(
    ("later", "ahead"),
    [
        ([], True),
        ([(PositionKind.COMMITTED, 3)], False),
        ([(PositionKind.TENTATIVE, 4)], False),
        ([(PositionKind.TENTATIVE, 3)], True),
    ],
)
def test_a_record_of_a_later_step_shows_that_one_was_committed(
    later: list[tuple[PositionKind, int]], ahead: bool
) -> None:
    """The core writes no record of a commit if nothing has changed since the record ahead."""
    kinds = [(PositionKind.COMMITTED, 2), (PositionKind.TENTATIVE, 3), *later]
    entries = [PositionEntry(number, kind, step, b"") for number, (kind, step) in enumerate(kinds)]
    assert is_ahead(entries, 3) is ahead
    assert not is_ahead(entries, 2)


def test_a_step_whose_backward_pass_did_not_tell_is_refused(tmp_path: Path) -> None:
    """A model may skip the hooked layer: the position recorded at the end of the forward pass is then too old."""
    job = Job(tmp_path)
    job.behind_forward = job.part.move
    job.step(5)
    job.model.weight.requires_grad_(False)
    job.step(commits=False)
    other = job.newcomer(tmp_path)
    assert "part of the data changes between the end" in other.recovery.late.why_stale(6)


def test_without_an_agent_nothing_is_looked_at(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.recovery.late.end()
    never = Job(tmp_path, agent=False)
    for one in (job, never):
        one.behind_forward = one.part.move
        one.step(4)
        assert not one.model.weight._backward_hooks


@pytest.mark.parametrize("damage", [b"", b"\xff" * 40])
def test_a_damaged_position_counts_for_nothing(tmp_path: Path, damage: bytes) -> None:
    job = Job(tmp_path)
    job.behind_step = job.part.move
    job.step(3)
    job.recovery._positions.write(PositionKind.TENTATIVE, 4, [], damage)
    other = job.newcomer(tmp_path)
    other.recovery.late.begin()
    other.recovery.late.why_stale(4)


def test_what_moves_before_the_forward_pass_alone_costs_no_hook(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(tmp_path)
    job.before = job.part.move
    job.step(5)
    assert not job.model.weight._backward_hooks
    assert not job.recovery.late.owes
    assert not caplog.records
