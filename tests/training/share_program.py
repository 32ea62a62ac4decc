"""One rank of four: `share_program.py CASE RANK PORT`. Ends with status 0 if all its checks hold."""

import sys
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import TCPStore
from torch.nn.parallel import DistributedDataParallel

from taskd.adaptors.groups import GroupWorld
from taskd.adaptors.groups.members import Members
from taskd.adaptors.training.restore import restore
from taskd.adaptors.training.sharding.layout import repoint
from taskd.adaptors.training.state import TrainState
from taskd.wire.kinds import JobRank, WorldRank
from taskd.wire.messages import WorldPlan
from taskd.wire.state import Transfer
from tests.leave import leave

CASE, RANK, PORT = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
FULL = (0, 1, 2, 3)
WORLD = GroupWorld()


def make(buckets_mb: float = 25, norm: bool = False) -> TrainState:
    torch.manual_seed(5)
    normed = nn.BatchNorm1d(32) if norm else nn.Identity()
    net = nn.Sequential(nn.Linear(8, 32), normed, nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 32), nn.Linear(32, 1))
    model = DistributedDataParallel(net, bucket_cap_mb=buckets_mb)
    state = TrainState(seed=3, model=model, optimizer=torch.optim.AdamW(net.parameters(), lr=1e-2))
    state._recovery.begin(JobRank(RANK))
    return state


def batch(step: int, index: int) -> torch.Tensor:
    return torch.randn(6, 8, generator=torch.Generator().manual_seed(10 * step + index))


def gradients(state: TrainState) -> list[torch.Tensor]:
    state.optimizer.zero_grad()
    for share in state.shares():
        assert share.count == len(FULL)
        loss = state.model(batch(state.step, share.index)).square().mean() * share.scale
        loss.backward()
    return [parameter.grad.clone() for parameter in state.model.parameters()]


def train(state: TrainState, steps: int) -> None:
    for _ in range(steps):
        gradients(state)
        state.optimizer.step()
        state.commit()


def join(state: TrainState, generation: int, members: tuple[int, ...], step: int, receivers: tuple[int, ...]) -> None:
    """Carry out a plan as a session does. The donor is the first member."""
    plan = WorldPlan(
        generation=generation,
        world_size=len(members),
        members=tuple(map(JobRank, members)),
        replicas=len(FULL),
        store_host="127.0.0.1",
        store_port=PORT,
        target_step=step,
        adopt=(),
        transfers=(Transfer(donor=WorldRank(0), receivers=tuple(map(WorldRank, receivers))),) if receivers else (),
        timeout_s=30,
    )
    rank = Members.of(plan).rank_of(JobRank(RANK))
    WORLD.rebuild(plan, JobRank(RANK))
    repoint(state._recovery, WORLD, plan)
    state._recovery.enter_world(JobRank(RANK), rank, len(members), len(FULL))
    assert restore(state._recovery, plan, rank).note == ""
    destroyer = WORLD.destroy_retired()
    assert destroyer is not None
    destroyer.join()


def smaller() -> None:
    """Gradients of three, two and one ranks equal those of four, with dropout. One backward pass communicates."""
    state = make(buckets_mb=0.001)
    whole = gradients(state)
    clock = TCPStore("127.0.0.1", PORT, is_master=False)
    for generation, members in enumerate([(0, 2, 3), (3, 1), (2,), (1, 0, 3)], 1):
        if RANK in members:
            join(state, generation, members, 0, ())
            for mine, theirs in zip(gradients(state), whole, strict=True):
                torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
            assert state.model.require_backward_grad_sync
            if clock.add(f"present-{generation}", 1) == len(members):
                clock.set(f"over-{generation}", "")
        clock.wait([f"over-{generation}"], timedelta(seconds=60))  # no rank runs ahead: a later world deletes keys


def elastic() -> None:
    """A rank leaves and returns. After each step all present ranks hold the same bits, near those of a full world."""
    state = make(buckets_mb=0.001)
    train(state, 3)
    if RANK != 1:
        join(state, 1, (0, 2, 3), 3, ())
        train(state, 3)
    join(state, 2, FULL, 6, (1,))
    train(state, 3)
    assert state.step == 9
    undisturbed = make(buckets_mb=0.001)
    train(undisturbed, 9)
    for mine, theirs in zip(state.model.parameters(), undisturbed.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-5)
        lowest, highest = mine.detach().clone(), mine.detach().clone()
        dist.all_reduce(lowest, dist.ReduceOp.MIN)
        dist.all_reduce(highest, dist.ReduceOp.MAX)
        assert torch.equal(lowest, highest)


def broken_off() -> None:
    """A step that ends between two shares leaves DDP, with its buffers, as if the step had not begun."""
    state = make(norm=True)
    members = (0, 2, 3)
    if RANK not in members:
        return
    join(state, 1, members, 0, ())
    train(state, 1)
    try:
        for share in state.shares():
            state.model(batch(state.step, share.index)).sum().backward()
            if RANK == 0:
                assert not state.model.require_backward_grad_sync
                raise RuntimeError
    except RuntimeError:  # the others wait for rank 0 in their last share
        WORLD.abandon()
    else:
        raise AssertionError
    assert state.model.require_backward_grad_sync
    state._recovery.rollback()
    join(state, 2, members[::-1], 1, ())
    train(state, 2)


def full() -> None:
    """In the full world, the loop gives the same bits as a script without it."""
    with_shares, without = make(), make()
    train(with_shares, 4)
    without._recovery.begin(JobRank(RANK))
    for _ in range(4):
        without.optimizer.zero_grad()
        without.model(batch(without.step, RANK)).square().mean().backward()
        without.optimizer.step()
        without.commit()
    for mine, theirs in zip(with_shares.model.parameters(), without.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    (share,) = with_shares.shares()
    assert (share.index, share.count, share.scale, share.last) == (RANK, 4, 1.0, True)


def samplers() -> None:
    """A newcomer without a known position gets its donor's and reports this; a seed replaces half of it."""

    class Place:
        def __init__(self) -> None:
            self.at = 0

        def state_dict(self) -> dict[str, int]:
            return {"at": self.at}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.at = state["at"]

    for generation, seed in ((1, None), (2, 8)):
        torch.manual_seed(RANK)
        net = nn.Linear(2, 2)
        state = TrainState(
            seed=seed, model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1), data={"loader": Place()}
        )
        receives = RANK == 3
        if receives:
            state._recovery.declare_empty()
        else:
            state._recovery.begin(JobRank(RANK))
            net(torch.randn(1, 2)).sum().backward()
            state.optimizer.step()
            state.loader.at = 70 + RANK
            state.commit()
        plan = WorldPlan(
            generation=generation,
            world_size=4,
            store_host="127.0.0.1",
            store_port=PORT,
            target_step=1,
            adopt=(),
            transfers=(Transfer(donor=WorldRank(2), receivers=(WorldRank(3),)),),
            timeout_s=30,
        )
        state._recovery.enter_world(JobRank(RANK), WorldRank(RANK), 4, 4)
        note = restore(state._recovery, plan, WorldRank(RANK)).note
        drawn: list[float] = [0.0] * 4
        dist.all_gather_object(drawn, torch.rand(1).item())
        assert state.loader.at == (72 if receives else 70 + RANK)
        assert bool(note) == receives
        assert len(set(drawn)) == (3 if seed is None else 4)
        if receives:
            what = "data position" if seed else "random numbers and data position"
            assert note.startswith(f"{what} (loader) of step 1 not known on this node")
            assert "those of its donor" in note
            assert ("seed=" in note) == (seed is None)
            assert (drawn[3] == drawn[2]) == (seed is None)


def main(*cases: Callable[[], None]) -> None:
    """Run the case of that name."""
    torch.set_num_threads(1)
    WORLD.observe()
    store = TCPStore("127.0.0.1", PORT, is_master=False, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=RANK, world_size=len(FULL), timeout=timedelta(seconds=30))
    {case.__name__: case for case in cases}[CASE]()
    store.set(f"done/{RANK}", "")
    store.wait([f"done/{rank}" for rank in FULL])
    leave()


if __name__ == "__main__":
    main(smaller, elastic, broken_off, full, samplers)
