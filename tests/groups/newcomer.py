"""A newcomer of a test world, which sets itself up alone: `newcomer.py CASE RANK SIZE PORT`. Status 0 if all holds."""

import os
import sys
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from taskd.adaptors.groups import GroupWorld
from taskd.adaptors.groups.handle import GroupHandle
from taskd.adaptors.groups.wrappers import line_of, living
from taskd.adaptors.training.limits.refusals import matters
from taskd.adaptors.training.state import TrainState
from taskd.errors import RebuildError, RefusedError
from taskd.wire.kinds import JobRank
from taskd.wire.messages import WorldPlan
from tests.leave import leave

CASE, RANK, SIZE, PORT = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
WORLD = GroupWorld()


def plan(generation: int, members: tuple[int, ...] = (), timeout_s: float = 30) -> WorldPlan:
    return WorldPlan(
        generation=generation,
        world_size=len(members) or SIZE,
        members=tuple(map(JobRank, members)),
        replicas=SIZE,
        store_host="127.0.0.1",
        store_port=PORT,
        target_step=0,
        adopt=(),
        transfers=(),
        timeout_s=timeout_s,
    )


def total(group: dist.ProcessGroup | None = None) -> float:
    tensor = torch.tensor([float(RANK)])
    dist.all_reduce(tensor, group=group)
    return tensor.item()


def alone() -> None:
    """A newcomer sets itself up without any peer or store."""
    WORLD.pretend(JobRank(RANK), SIZE)
    dist.init_process_group("gloo")
    pair, others = dist.new_group([1, 2]), dist.new_group([0, 3])
    assert others == dist.GroupMember.NON_GROUP_MEMBER
    assert (dist.get_rank(), dist.get_world_size(), dist.get_rank(pair), dist.get_world_size(pair)) == (2, 4, 1, 2)
    assert dist.get_backend() == dist.get_backend(pair) == "gloo"
    gathered: list[object] = [None] * SIZE
    dist.all_gather_object(gathered, {"rank": RANK})
    assert gathered == [{"rank": RANK}] * SIZE
    for source in (0, RANK):
        given = [RANK, "mine"]
        dist.broadcast_object_list(given, src=source)
        assert given == [RANK, "mine"]
    scattered: list[object] = [None]
    dist.scatter_object_list(scattered, None, 0)
    assert scattered == [None]
    dist.scatter_object_list(scattered, list(range(SIZE)), RANK)
    assert scattered == [RANK]
    dist.barrier()
    dist.monitored_barrier()
    dist.barrier(group=pair)
    assert total() == total(pair) == RANK
    model = DistributedDataParallel(nn.Linear(3, 3))
    for _ in range(3):
        model(torch.ones(2, 3)).sum().backward()
    part = DistributedDataParallel(nn.Linear(3, 3), process_group=pair)
    part(torch.ones(2, 3)).sum().backward()


def alone_no_more() -> None:
    """An inner group of the set-up refuses every collective once its world is joined."""
    WORLD.pretend(JobRank(RANK), SIZE)
    dist.init_process_group("gloo")
    everyone, model = dist.group.WORLD, DistributedDataParallel(nn.Linear(3, 3))
    assert isinstance(everyone, GroupHandle)
    lone = everyone.inner()
    for collective in collectives(lone):
        collective()
    WORLD.rebuild(plan(1, (RANK,)), JobRank(RANK))
    assert total() == total(everyone) == RANK
    model(torch.ones(2, 3)).sum().backward()
    for collective in collectives(lone):
        with pytest.raises(RuntimeError, match="has joined its world since"):
            collective()
    dist.destroy_process_group()
    os.environ.update(RANK="0", WORLD_SIZE="1")
    dist.init_process_group("gloo")
    assert total() == RANK
    assert isinstance(dist.group.WORLD, GroupHandle)
    assert not isinstance(dist.group.WORLD.inner(), type(lone))


def collectives(group: dist.ProcessGroup) -> list[Callable[[], object]]:
    """Return calls of collectives from Python by name, by function, and from C++."""
    one, four = torch.ones(4), torch.ones(4 * SIZE)
    parts = list(four.chunk(SIZE))
    return [
        lambda: group.allreduce([one]),
        lambda: group.broadcast(one, 0),
        lambda: group.allgather([parts], [one]),
        lambda: group.alltoall_base(four, four, [], []),
        lambda: group._allgather_base(four, one),
        lambda: group.allgather_into_tensor_coalesced([four], [one]),
        lambda: group.reduce_scatter_tensor_coalesced([one], [four]),
        group.barrier,
        lambda: group.send([one], 0, 0),
        lambda: group.recv([one], 0, 0),
        lambda: dist._verify_params_across_processes(group, [one], None),
        lambda: dist._broadcast_coalesced(group, [one], 1024, 0),
    ]


def dead_store() -> None:
    """Without a store there soon is an error with the address."""
    WORLD.pretend(JobRank(RANK), SIZE)
    dist.init_process_group("gloo")
    with pytest.raises(RebuildError, match=f"no store answers at 127.0.0.1:{PORT}"):
        WORLD.rebuild(plan(1, timeout_s=1), JobRank(RANK))


def dropped() -> None:
    """A wrapper that the script has dropped prevents nothing; one outside of the state does."""
    WORLD.pretend(JobRank(RANK), SIZE)
    dist.init_process_group("gloo")
    first = DistributedDataParallel(nn.Linear(3, 3))
    vars(first)["itself"] = first
    del first
    network = nn.Linear(3, 3)
    kept = DistributedDataParallel(network)
    assert len(living()) == 2
    state = TrainState(model=network, optimizer=torch.optim.SGD(kept.parameters(), lr=0.1))
    assert not matters(state._recovery.parts)
    assert living() == [kept]
    other = DistributedDataParallel(nn.Linear(2, 2))
    (matter,) = matters(state._recovery.parts)
    assert line_of(other) in matter.text
    assert "newcomer.py:" in matter.text
    assert not matter.no_rebuild


def refused() -> None:
    """Check further refusals beforehand, in addition to the jobs of `tests/e2e/test_wrappers.py`."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.tensor import distribute_module

    WORLD.observe()
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    net = nn.Linear(2, 2)
    named = [("weight", net.weight)]
    delayed = DistributedDataParallel(net, delay_all_reduce_named_params=named, param_to_hook_all_reduce=net.bias)
    (matter,) = matters(TrainState(model=delayed, optimizer=torch.optim.SGD(net.parameters(), lr=0.1))._recovery.parts)
    assert f"{line_of(delayed)} has delay_all_reduce_named_params" in matter.text
    assert "newcomer.py:" in matter.text
    assert matter.no_rebuild
    model = distribute_module(nn.Linear(2, 2), init_device_mesh("cpu", (1,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = matters(TrainState(model=model, optimizer=optimizer)._recovery.parts)
    assert not any("sharded" in matter.text for matter in found)  # every rank has all of it
    first = FullyShardedDataParallel(nn.Linear(2, 2), device_id=torch.device("cpu"))
    *_, matter = matters(TrainState(model=first, optimizer=torch.optim.SGD(first.parameters(), lr=0.1))._recovery.parts)
    assert "newcomer.py:" in matter.text
    assert "is sharded by FullyShardedDataParallel" in matter.text
    assert matter.no_rebuild
    assert not WORLD.strangers()
    own = dist.PrefixStore("own", store)
    c10d, timeout = dist.distributed_c10d, timedelta(seconds=9)
    c10d._new_process_group_helper(1, 0, [], c10d.Backend("gloo"), own, group_name="mine", timeout=timeout)  # type: ignore[arg-type]
    with pytest.raises(RefusedError, match=r"\['mine'\] were made by shrink_group, or of a store of the script's own"):
        WORLD.rebuild(plan(1, (0,)), JobRank(0))


torch.set_num_threads(1)
{case.__name__: case for case in (alone, alone_no_more, dead_store, dropped, refused)}[CASE]()
leave()
