"""The global batch in shares: who works at which, and that the gradients stay those of the full world."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._C._distributed_c10d import TCPStore
from torch.utils.data import DistributedSampler

from taskd.adaptors.training.shares import shares_of
from taskd.adaptors.training.state import TrainState
from tests.launch import Launcher
from tests.thorough import everyday
from tests.training.job import ENVIRONMENT

PROGRAM = Path(__file__).with_name("share_program.py")


def make(**more: Any) -> TrainState:
    model = nn.Linear(2, 2)
    return TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), **more)


@pytest.mark.parametrize(("world_size", "replicas"), [(4, 4), (3, 4), (2, 4), (1, 4), (5, 8), (1, 1)])
def test_each_share_is_worked_at_once_and_all_have_the_same_weight(world_size: int, replicas: int) -> None:
    by_rank = [shares_of(rank, world_size, replicas) for rank in range(world_size)]
    every = [share for own in by_rank for share in own]
    assert sorted(share.index for share in every) == list(range(replicas))
    assert {share.count for share in every} == {replicas}
    assert {share.scale / world_size for share in every} == {1 / replicas}
    assert all([share.last for share in own] == [False] * (len(own) - 1) + [True] for own in by_rank)
    assert [own[0].index for own in by_rank] == list(range(world_size))
    assert max(map(len, by_rank)) - min(map(len, by_rank)) <= 1


def test_a_single_process_has_one_share() -> None:
    state = make()
    assert not state.uses_shares
    (share,) = state.shares()
    assert (share.index, share.count, share.scale, share.last) == (0, 1, 1.0, True)
    assert state.uses_shares


def test_the_full_world_pays_nothing() -> None:
    """One and the same tuple, so there is nothing to be done per step."""
    state = make(seed=1)
    state.enter_world(2, 2, 4, 4)
    assert state.shares() is state.shares()


def test_a_share_has_the_numbers_of_the_rank_that_has_it_in_the_full_world() -> None:
    owner = make(seed=1)
    owner.begin(3)
    expected = torch.rand(2)
    substitute = make(seed=1)
    substitute.begin(0)
    own = torch.rand(2)
    substitute.enter_world(0, 0, 3, 4)
    drawn = [torch.rand(2) for _ in substitute.shares()]
    assert torch.equal(torch.stack(drawn), torch.stack([own, expected]))


def test_what_two_shares_on_one_rank_change() -> None:
    """BatchNorm moves its running statistics for each share; a sampler deals out as it was made to."""
    norm = nn.BatchNorm1d(2)
    dataset: Any = range(8)
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, num_replicas=2, rank=0, shuffle=False)
    state = TrainState(model=norm, optimizer=torch.optim.SGD(norm.parameters(), lr=0.1), sampler=sampler)
    state.begin(0)
    state.enter_world(0, 0, 1, 2)
    for _share in state.shares():
        norm(torch.randn(4, 2))
    assert norm.num_batches_tracked == 2
    assert list(sampler) == [0, 2, 4, 6]


@pytest.fixture
def port() -> Iterator[int]:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield store.port
    del store


@pytest.mark.parametrize("case", everyday(["smaller", "elastic", "broken_off", "full", "samplers"], "elastic", "full"))
def test_four_ranks(launcher: Launcher, port: int, case: str) -> None:
    ranks = [launcher.start(["python", PROGRAM, case, str(rank), str(port)], env=ENVIRONMENT) for rank in range(4)]
    for rank, process in enumerate(ranks):
        status = process.wait(80)
        assert status == 0, f"rank {rank}: {status}\n{launcher.output(process)}"
