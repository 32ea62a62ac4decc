"""Values recovered in place but not to the last bit: reported in advance with their line, or listed on the page."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from taskd.adaptors.groups import wrappers
from taskd.adaptors.training.limits.refusals import tell_inexact
from taskd.adaptors.training.parts.kinds import sort
from taskd.adaptors.training.parts.parts import Parts
from taskd.adaptors.training.state import TrainState
from taskd.wire.kinds import JobRank


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("norm", "told"),
    [
        (nn.BatchNorm1d(3), True),
        (nn.BatchNorm1d(3, track_running_stats=False), False),
        (nn.LayerNorm(3), False),
    ],
    ids=["own statistics", "none", "no such layer"],
)
@pytest.mark.usefixtures("alone")
def test_statistics_that_one_rank_alone_has(norm: nn.Module, caplog: pytest.LogCaptureFixture, *, told: bool) -> None:
    model = DistributedDataParallel(nn.Sequential(nn.Linear(3, 3), norm))
    tell_inexact(Parts(sort({"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)})))
    assert ("has 1 BatchNorm layers" in caplog.text) is told
    assert (wrappers.line_of(model) in caplog.text) is told


def make(seed: int | None, path: Path) -> TrainState:
    model = nn.Linear(2, 2)
    state = TrainState(seed=seed, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    state._recovery.attach(str(path))
    return state


def numbers() -> tuple[float, float]:
    return random.random(), torch.rand(1).item()


def test_numbers_after_the_last_forward_are_not_those_of_who_died(tmp_path: Path) -> None:
    """Its peers have made the step. The replacement continues from the end of the forward pass."""
    state = make(None, tmp_path / "position")
    state._recovery.begin(JobRank(0))
    state.model(torch.ones(1, 2)).sum().backward()
    drawn = numbers()
    state.optimizer.step()
    other = make(None, tmp_path / "position")
    assert other._recovery.return_to(1) == ""
    assert numbers() == drawn


def test_numbers_between_two_steps_are_taken_from_the_next_one(tmp_path: Path) -> None:
    """This holds with a seed. A step that is done again then starts with them."""
    state = make(1, tmp_path / "position")
    state._recovery.begin(JobRank(0))
    state.commit()
    between, inside = numbers(), numbers()
    state._recovery.return_to(1)
    assert between == numbers() != inside
