"""Kinds of process group and of device mesh, and operations over them."""

import tempfile
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed import _functional_collectives as functional
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from tests.sharded.kinds import kind
from tests.sharded.kinds_of_models import net, sharded, train


@kind
def meshes() -> object:
    found: list[object] = []
    for shape in ((4,), (2, 2), (1, 2, 2), (1, 2, 1, 2)):
        names = tuple("abcd"[: len(shape)])
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        found.append(mesh.get_coordinate())
        for name in names:
            group = mesh.get_group(name)
            found += [dist.get_process_group_ranks(group), dist.get_rank(group), mesh.get_local_rank(name)]
            found += [dist.get_global_rank(group, 0), group.size(), dist.get_backend(group), mesh[name].size()]
            total = torch.full((2,), float(dist.get_rank()))
            dist.all_reduce(total, group=group)
            found += [
                total,
                functional.all_reduce(total, "sum", group),
                functional.all_reduce(total, "sum", mesh[name]),
            ]
    return found


@kind
def mesh_parts() -> object:
    found: list[object] = []
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    flat = mesh._flatten("dp_tp") if hasattr(mesh, "_flatten") else mesh
    found += [flat.size(), flat.get_local_rank(), dist.get_process_group_ranks(flat.get_group())]
    again = DeviceMesh.from_group(mesh.get_group("tp"), "cpu", mesh_dim_names=("again",))
    found += [again.mesh, dist.get_process_group_ranks(again.get_group())]
    both = DeviceMesh.from_group(mesh.get_all_groups(), "cpu", mesh=mesh.mesh, mesh_dim_names=("one", "two"))
    total = distribute_tensor(torch.arange(16.0).reshape(4, 4), both, [Shard(0), Shard(1)])
    found += [total.full_tensor(), total.redistribute(both, [Replicate(), Shard(0)]).to_local()]
    whole = DeviceMesh.from_group(dist.distributed_c10d._get_default_group(), "cpu")
    found += [whole.mesh, DTensor.from_local(torch.ones(2), whole, [Partial()]).full_tensor()]
    return found


@kind
def distribute() -> object:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))["tp"]
    given = torch.arange(8.0).reshape(4, 2) + dist.get_rank()
    return [
        distribute_tensor(given, mesh, [Shard(0)]).to_local(),
        distribute_tensor(given, mesh, [Replicate()]).to_local(),
    ]


@kind
def groups_of_members_alone() -> object:
    pairs = [[0, 1], [2, 3]]
    mine = pairs[dist.get_rank() // 2]
    group = dist.new_group(mine, use_local_synchronization=True)
    total = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(total, group=group)
    model = sharded(net(), None)
    separate: Any = getattr(type(model), "set_separate_reduce_scatter_group", None)  # in some versions of torch
    if separate is not None:
        separate(model, True)
    return [total, dist.get_process_group_ranks(group), *train(model, torch.optim.SGD(model.parameters(), 0.1), group)]


@kind
def split() -> object:
    group = dist.split_group(split_ranks=[[0, 1], [2, 3]])
    total = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(total, group=group)
    return [total]


@kind
def calls() -> object:
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(list(range(size)))
    found: list[object] = []
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank}, group=group)
    told = ["x" if rank == 1 else None]
    dist.broadcast_object_list(told, src=1)
    found += [objects, told]
    into, ring = torch.empty(2), torch.full((2,), float(rank))
    ends = (
        dist.P2POp(dist.isend, ring, (rank + 1) % size, group),
        dist.P2POp(dist.irecv, into, (rank - 1) % size, group),
    )
    for work in dist.batch_isend_irecv(list(ends)):
        work.wait()
    found.append(into)
    spread = torch.empty(size)
    dist.all_to_all_single(spread, torch.arange(size, dtype=torch.float) + rank, group=group)
    gathered = torch.empty(size * 2)
    dist.all_gather_into_tensor(gathered, ring)
    dist.monitored_barrier()
    work = dist.all_reduce(ring, group=dist.group.WORLD, async_op=True)
    assert work is not None
    work.wait()
    found += [spread, gathered, ring, repr(dist.get_backend()), dist.get_world_size(dist.group.WORLD)]
    dist.destroy_process_group(group)
    return found


@kind
def compiled() -> object:
    group = dist.new_group(list(range(dist.get_world_size())))
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))

    def work(rows: torch.Tensor) -> torch.Tensor:
        total = functional.all_reduce(rows * 2, "sum", mesh["tp"])
        total = functional.all_reduce(total, "sum", mesh.get_group("dp"))
        dist.all_reduce(total, group=group)
        rest = total + 1
        dist.all_reduce(rest)
        dist.all_reduce(rest, op=dist.ReduceOp.MAX, group=group)
        return rest * dist.get_world_size(group) + dist.get_rank()

    return [torch.compile(work, backend="aot_eager", fullgraph=True)(torch.full((3,), float(dist.get_rank())))]


@kind
def checkpoint() -> object:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
    model = sharded(net(), mesh)
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    before = get_model_state_dict(model)
    dcp.save({"model": before}, checkpoint_id=folder[0])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    dcp.load({"model": get_model_state_dict(model)}, checkpoint_id=folder[0])
    return list(model.parameters())
