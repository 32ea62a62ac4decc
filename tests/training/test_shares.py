"""The global batch in shares: the ranks that process each share, and gradients equal to those of the full world."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import TCPStore
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from taskd.adaptors.training.data.shares import shares_of
from taskd.adaptors.training.state import TrainState
from taskd.errors import ConfigError
from taskd.wire.kinds import JobRank, WorldRank
from tests.launch import Launcher
from tests.thorough import everyday
from tests.training.job import run_ranks

PROGRAM = Path(__file__).with_name("share_program.py")


def make(**more: Any) -> TrainState:
    model = nn.Linear(2, 2)
    return TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), **more)


@pytest.mark.parametrize(("world_size", "replicas"), [(4, 4), (3, 4), (2, 4), (1, 4), (5, 8), (1, 1)])
def test_each_share_is_worked_at_once_and_all_have_the_same_weight(world_size: int, replicas: int) -> None:
    by_rank = [shares_of(WorldRank(rank), world_size, replicas) for rank in range(world_size)]
    every = [share for own in by_rank for share in own]
    assert sorted(share.index for share in every) == list(range(replicas))
    assert {share.count for share in every} == {replicas}
    assert {share.scale / world_size for share in every} == {1 / replicas}
    assert all([share.last for share in own] == [False] * (len(own) - 1) + [True] for own in by_rank)
    assert [own[0].index for own in by_rank] == list(range(world_size))
    assert max(map(len, by_rank)) - min(map(len, by_rank)) <= 1


def test_a_single_process_has_one_share() -> None:
    state = make()
    assert not state._recovery.shares.used
    (share,) = state.shares()
    assert (share.index, share.count, share.scale, share.last) == (0, 1, 1.0, True)
    assert state._recovery.shares.used


def test_the_full_world_pays_nothing() -> None:
    """It is the same tuple each time, so a step has no extra work."""
    state = make(seed=1)
    state._recovery.enter_world(JobRank(2), WorldRank(2), 4, 4)
    assert state.shares() is state.shares()


def test_a_share_has_the_numbers_of_the_rank_that_has_it_in_the_full_world() -> None:
    owner = make(seed=1)
    owner._recovery.begin(JobRank(3))
    expected = torch.rand(2)
    substitute = make(seed=1)
    substitute._recovery.begin(JobRank(0))
    own = torch.rand(2)
    substitute._recovery.enter_world(JobRank(0), WorldRank(0), 3, 4)
    drawn = [torch.rand(2) for _ in substitute.shares()]
    assert torch.equal(torch.stack(drawn), torch.stack([own, expected]))


def test_a_share_goes_on_in_the_second_loop_of_a_step() -> None:
    """A GAN has one loop for each of its models. Work that is done again after a recovery starts at its beginning."""

    def both_loops() -> list[list[torch.Tensor]]:
        return [[torch.rand(2) for _ in substitute.shares()] for _ in range(2)]

    substitute = make(seed=1)
    substitute._recovery.begin(JobRank(0))
    substitute._recovery.enter_world(JobRank(0), WorldRank(0), 1, 2)
    both_loops()
    substitute._recovery.enter_world(JobRank(0), WorldRank(0), 1, 2)
    drawn = [both_loops()]
    substitute.commit()
    drawn.append(both_loops())
    for rank in range(2):
        owner = make(seed=1)
        owner._recovery.begin(JobRank(rank))
        for step in range(2):
            for loop in range(2):
                assert torch.equal(drawn[step][loop][rank], torch.rand(2)), (rank, step, loop)
            owner.commit()


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def three_in_one() -> TrainState:
    """Return a process that does the work of three."""
    model = DistributedDataParallel(nn.Linear(2, 2))
    state = TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    state._recovery.enter_world(JobRank(0), WorldRank(0), 1, 3)
    return state


def communicates(state: TrainState) -> list[bool]:
    return [state.model.require_backward_grad_sync for _ in state.shares()]


@pytest.mark.usefixtures("alone")
def test_the_last_share_communicates() -> None:
    state = three_in_one()
    assert communicates(state) == [False, False, True]
    with state.model.no_sync():
        assert communicates(state) == [False] * 3
        assert not state.model.require_backward_grad_sync
    assert communicates(state) == [False, False, True]


@pytest.mark.usefixtures("alone")
def test_a_loop_that_was_left_does_no_harm_later() -> None:
    """If it is still referenced, it ends when the next one starts, and has no effect in a new world."""
    state = three_in_one()
    left = iter(state.shares())
    next(left)
    assert communicates(state) == [False, False, True]
    left, present = iter(state.shares()), iter(state.shares())
    next(left), next(present)
    del left
    assert not state.model.require_backward_grad_sync, "the present loop is in its first share"
    assert [share.last for share in present] == [False, True]
    assert state.model.require_backward_grad_sync
    left, silent = iter(state.shares()), state.model.no_sync()
    next(left)
    state.model.require_backward_grad_sync = True  # as `repoint` does in a new world
    state._recovery.enter_world(JobRank(0), WorldRank(0), 1, 3)
    with silent:
        del left
        assert not state.model.require_backward_grad_sync
    assert state.model.require_backward_grad_sync


@pytest.mark.usefixtures("alone")
def test_communication_switched_on_by_hand_is_refused() -> None:
    """It would meet the communication of ranks that have one share."""
    state = three_in_one()
    shares = iter(state.shares())
    next(shares)
    state.model.require_backward_grad_sync = True
    with pytest.raises(ConfigError, match=r"switched on in share 0 of 3, which is not the last.*share\.last and"):
        next(shares)
    for share in state.shares():
        state.model.require_backward_grad_sync = share.last
    assert state.model.require_backward_grad_sync


def test_what_two_shares_on_one_rank_change() -> None:
    """BatchNorm updates its running statistics for each share. A sampler keeps its original division."""
    norm = nn.BatchNorm1d(2)
    dataset: Any = range(8)
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, num_replicas=2, rank=0, shuffle=False)
    state = TrainState(model=norm, optimizer=torch.optim.SGD(norm.parameters(), lr=0.1), sampler=sampler)
    state._recovery.begin(JobRank(0))
    state._recovery.enter_world(JobRank(0), WorldRank(0), 1, 2)
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
    statuses, output = run_ranks(launcher, 4, PROGRAM, case, "{rank}", str(port))
    assert statuses == [0] * 4, output


@pytest.mark.parametrize("case", ["accumulated", "around", "accumulated_in_full"])
def test_four_ranks_with_micro_batches_of_their_own(launcher: Launcher, port: int, case: str) -> None:
    """The cases: `no_sync()` within the loop over the shares, and around it."""
    program = Path(__file__).with_name("accumulation_program.py")
    statuses, output = run_ranks(launcher, 4, program, case, "{rank}", str(port))
    assert statuses == [0] * 4, output
