"""One rank of four: `restore_program.py CASE RANK PORT`. Ends with status 0 if all its checks hold."""

import sys
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import TCPStore
from torch.nn.parallel import DistributedDataParallel

from taskd.adaptors.groups import GroupWorld
from taskd.adaptors.training.restore import restore
from taskd.adaptors.training.sharding.layout import impose, layout_of, repoint
from taskd.adaptors.training.state import TrainState
from taskd.errors import DistrustError, RefusedError, RestoreError
from taskd.wire.kinds import JobRank, WorldRank
from taskd.wire.messages import Condition, WorldPlan
from taskd.wire.state import Transfer
from tests.leave import leave

CASE, RANK, PORT = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
DONOR = 1
WORLD = GroupWorld()


class Net(nn.Module):
    """Tied weights, a large tensor, another memory order, several types, an empty tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight
        self.large = nn.Linear(16, 20_000)
        self.picture = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.short = nn.Parameter(torch.randn(7, dtype=torch.bfloat16))
        self.register_buffer("flags", torch.rand(9) > 0.5)
        self.register_buffer("nothing", torch.empty(0, 3))
        self.register_buffer("count", torch.tensor(RANK))
        self.register_buffer("mask", torch.ones(4), persistent=False)
        self.register_buffer("mean", torch.zeros(()), persistent=False)
        self.passes = 0
        self.embed.register_buffer("seen", torch.zeros(0, dtype=torch.long), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        y = self.embed(x)
        self.embed.seen = torch.cat([self.embed.get_buffer("seen"), x])
        self.get_buffer("mean").lerp_(y.detach().mean(), 0.1)
        picture = self.picture(torch.ones(1, 3, 5, 5)).square().mean()
        return (
            self.head(y).square().mean() + self.large(y).square().mean() + picture + self.short.float().square().mean()
        )


def make(steps: int) -> TrainState:
    torch.manual_seed(RANK)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01 * (RANK + 1), betas=(0.8, 0.99))
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1 * (RANK + 1), total_steps=100)
    state = TrainState(model=net, optimizer=optimizer, scheduler=scheduler)
    state._recovery.begin()
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.arange(4)).backward()
        optimizer.step()
        scheduler.step()
        state.commit()
    return state


def tensors(state: TrainState) -> dict[str, torch.Tensor]:
    found = dict(state.model.state_dict()) | dict(state.model.named_buffers())
    for name, parameter in state.model.named_parameters():
        found |= {f"{name}.{key}": value for key, value in state.optimizer.state[parameter].items()}
    return found


def agree(state: TrainState, ranks: list[int]) -> None:
    """Require that every tensor and setting of `ranks` equals the donor's, bit for bit."""
    mine = {
        name: (t.dtype, t.shape, t.contiguous().reshape(-1).view(torch.uint8)) for name, t in tensors(state).items()
    }
    settings = [
        {key: value for key, value in group.items() if key != "params"} for group in state.optimizer.param_groups
    ]
    everyone: list[object] = [None] * 4
    dist.all_gather_object(everyone, (mine, settings, state.scheduler.state_dict(), state.step, state.model.passes))
    donor, here = everyone[DONOR], everyone[RANK]
    if RANK not in ranks:
        return
    assert here[1:] == donor[1:], (here[1:], donor[1:])  # type: ignore[index]
    assert isinstance(state.optimizer.param_groups[0]["betas"], tuple)
    for name, value in donor[0].items():  # type: ignore[index]
        assert value[:2] == mine[name][:2], name
        assert torch.equal(value[2], mine[name][2]), name
    assert state.model.head.weight is state.model.embed.weight


def plan(receivers: tuple[int, ...], step: int) -> WorldPlan:
    return WorldPlan(
        generation=1,
        world_size=4,
        store_host="127.0.0.1",
        store_port=PORT,
        target_step=step,
        adopt=(),
        transfers=(Transfer(donor=WorldRank(DONOR), receivers=tuple(map(WorldRank, receivers))),),
        timeout_s=30,
    )


def transfer(receivers: tuple[int, ...], fresh: bool) -> None:
    state = make(0 if fresh and RANK in receivers else 3)
    if fresh and RANK in receivers:
        state._recovery.declare_empty()
    places = {name: t.data_ptr() for name, t in tensors(state).items() if t.is_contiguous() and t.numel()}
    report = restore(state._recovery, plan(receivers, 3), WorldRank(RANK))
    assert state._recovery.condition() is Condition.CLEAN
    assert all(parameter.grad is None for parameter in state.model.parameters())
    agree(state, [DONOR, *receivers])
    kept = {name: tensors(state)[name].data_ptr() for name in places}
    assert kept == places, "tensors were not filled in place"
    weights = state.model.large.weight.nbytes
    assert (report.size_bytes > 3 * weights) == (RANK == DONOR or RANK in receivers), report
    assert ("not known" in report.note) == (fresh and RANK in receivers), report
    state.optimizer.zero_grad()
    state.model(torch.arange(4)).backward()
    state.optimizer.step()
    state.scheduler.step()
    state.commit()
    agree(state, [DONOR, *receivers])


def everybody() -> None:
    transfer((0, 2, 3), fresh=True)


def some() -> None:
    transfer((0, 3), fresh=True)


def survivors() -> None:
    transfer((0, 3), fresh=False)


def misfit() -> None:
    """A receiver with another model is TORN and names the difference; the donor is unharmed."""
    state = make(2)
    if RANK == 3:
        state.model.large = nn.Linear(16, 10)
    if RANK == 3:
        with pytest.raises(RestoreError, match=r"large\.weight"):
            restore(state._recovery, plan((3,), 2), WorldRank(RANK))
        assert state._recovery.condition() is Condition.TORN
    else:
        restore(state._recovery, plan((3,), 2), WorldRank(RANK))
        assert state._recovery.condition() is Condition.CLEAN


def flipped() -> None:
    """A bit that flips on the way is detected: the receiver is TORN and names the sender."""
    state = make(2)
    if RANK == DONOR:
        largest, send = max(tensor.nbytes for tensor in tensors(state).values()), dist.isend

        def isend(tensor: torch.Tensor, receiver: int) -> object:
            if tensor.nbytes >= largest:
                tensor = tensor.clone()
                tensor[len(tensor) // 2] ^= 1
            return send(tensor, receiver)

        dist.isend = isend  # type: ignore[assignment]
    if RANK == 3:
        with pytest.raises(DistrustError, match=f"the state that rank {DONOR} has sent has another digest"):
            restore(state._recovery, plan((3,), 2), WorldRank(RANK))
        assert state._recovery.replicas.said().distrusts == DONOR
        assert state._recovery.condition() is Condition.TORN
    else:
        restore(state._recovery, plan((3,), 2), WorldRank(RANK))


def behind() -> None:
    """A rank that the plan wrongly counts as clean refuses the plan."""
    state = make(2 if RANK else 1)
    if RANK == 0:
        with pytest.raises(RestoreError, match="clean at step 1"):
            restore(state._recovery, plan((3,), 2), WorldRank(RANK))
    else:
        restore(state._recovery, plan((3,), 2), WorldRank(RANK))


def layouts() -> None:
    """Any layout can be imposed, even with frozen, shared or ignored parameters."""
    net = Net()
    net.picture.requires_grad_(False)
    for name in ("large.weight", "short"):
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, [name])
        wrapper = DistributedDataParallel(net, bucket_cap_mb=0.001)
        assert dist.group.WORLD is not None
        wrapper._update_process_group(dist.group.WORLD)
        first = layout_of(wrapper)
        flat = sorted(index for bucket in first for index in bucket)
        assert flat == list(range(len(flat)))
        for wanted in ([[index] for index in reversed(flat)], [[*flat[::-1]]] if name == "short" else first, first):
            same_type = [bucket for bucket in wanted if len({kind(wrapper, i) for i in bucket}) == 1]
            if len(same_type) != len(wanted):
                continue  # a bucket holds one type
            impose(wrapper, wanted, dist.group.WORLD)
            assert layout_of(wrapper) == wanted
        for _ in range(3):
            wrapper(torch.arange(4)).backward()


def elsewhere() -> None:
    """One process has a wrapper in another group: no rank waits in that group, and all are informed at once."""
    group = dist.new_group(timeout=timedelta(seconds=600))
    state = make(1)
    wrapper = DistributedDataParallel(nn.Linear(2, 2), process_group=group)
    if RANK == 3:
        wrapper._update_process_group(dist.group.WORLD)
    WORLD.rebuild(plan((), 1), JobRank(RANK))
    with pytest.raises(
        RefusedError, match=r"restore_program\.py:\d+ communicates in group \S+ with ranks \[0, 1, 2, 3\]"
    ):
        repoint(state._recovery, WORLD, plan((), 1))


def kind(wrapper: DistributedDataParallel, index: int) -> torch.dtype:
    from taskd.adaptors.training.sharding.sameness import parameters

    return parameters(wrapper)[index].dtype


def main() -> None:
    torch.set_num_threads(1)
    cases: dict[str, Callable[[], None]] = {
        f.__name__: f for f in (everybody, some, survivors, misfit, flipped, behind, layouts, elsewhere)
    }
    WORLD.observe()
    store = TCPStore("127.0.0.1", PORT, is_master=False, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=RANK, world_size=4, timeout=timedelta(seconds=30))
    cases[CASE]()
    store.set(f"done/{RANK}", "")
    store.wait([f"done/{rank}" for rank in range(4)])
    leave()


main()
