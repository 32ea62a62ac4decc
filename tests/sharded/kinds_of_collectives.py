"""Collectives in all their forms over groups of meshes; meshes cut, joined and flattened; DTensors redistributed."""

from collections.abc import Callable
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import Placement

from tests.sharded.kinds import kind


def numbers(count: int = 4) -> torch.Tensor:
    return torch.arange(float(count)) + 10 * dist.get_rank() + 1


def tried(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Return its result, or the text of torch's error."""
    try:
        return function(*args, **options)
    except Exception as error:  # noqa: BLE001 - the words are compared
        return f"{type(error).__name__}: {str(error)[:120]}"


def grid() -> DeviceMesh:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))


@kind
def asynchronous() -> object:
    mesh, found, works = grid(), list[object](), list[Any]()
    for name in ("dp", "tp"):
        group = mesh.get_group(name)
        first = dist.get_process_group_ranks(group)[0]
        total, told, gathered = numbers(), numbers(), [torch.empty(4) for _ in range(2)]
        flat, spread, swapped, one = torch.empty(8), torch.empty(2), torch.empty(4), torch.empty(2)
        works += [
            dist.all_reduce(total, group=group, async_op=True),
            dist.broadcast(told, first, group=group, async_op=True),
            dist.all_gather(gathered, numbers(), group=group, async_op=True),
            dist.all_gather_into_tensor(flat, numbers(), group=group, async_op=True),
            dist.reduce_scatter_tensor(spread, numbers(), group=group, async_op=True),
            dist.all_to_all_single(swapped, numbers(), group=group, async_op=True),
            dist.scatter(
                one,
                list(numbers().chunk(2)) if dist.get_rank() == first else None,
                first,
                group=group,
                async_op=True,
            ),
            dist.barrier(group=group, async_op=True),
        ]
        found += [total, told, gathered, flat, spread, swapped, one]
    for work in reversed(works):
        work.wait()
    return [*found, [work.is_completed() for work in works]]


@kind
def messages() -> object:
    group = grid().get_group("tp")
    peer, got, other = 1 - dist.get_rank(group), torch.empty(4), torch.empty(4)
    sent = dist.isend(numbers(), group=group, group_dst=peer)
    dist.recv(got, group=group, group_src=peer)
    assert sent is not None
    sent.wait()
    ends = [
        dist.P2POp(dist.isend, numbers() * 2, group=group, group_peer=peer),
        dist.P2POp(dist.irecv, other, group=group, group_peer=peer),
    ]
    for work in dist.batch_isend_irecv(ends):
        work.wait()
    anyone = torch.empty(4)
    if dist.get_rank(group) == 0:
        sender = dist.recv(anyone, group=group)
        return [got, other, anyone, sender]
    dist.send(numbers(), group=group, group_dst=0)
    return [got, other]


@kind
def functional_forms() -> object:
    mesh, found = grid(), list[object]()
    groups: list[Any] = [mesh.get_group("tp"), mesh["tp"], (mesh, 1), mesh.get_group("dp"), (mesh, 0), dist.group.WORLD]
    groups.append(mesh.get_group("tp").group_name)
    for group in groups:
        found += [
            tried(functional.all_reduce, numbers(), "sum", group),
            tried(functional.all_gather_tensor, numbers(), 0, group),
            tried(functional.reduce_scatter_tensor, numbers(8), "avg", 0, group),
            tried(functional.all_to_all_single, numbers(8), None, None, group),
            tried(functional.all_reduce_coalesced, [numbers(), numbers(2)], "max", group),
            tried(functional.all_gather_into_tensor_coalesced, [numbers(), numbers(2)], group),
            tried(functional.broadcast, numbers(), 0, group),
        ]
    rows = numbers(8).requires_grad_()
    functional.all_gather_tensor_autograd(rows, 0, mesh.get_group("tp")).square().sum().backward()
    again = numbers(8).requires_grad_()
    differentiable.all_reduce(again, group=mesh.get_group("dp")).square().sum().backward()
    return [*found, rows.grad, again.grad]


@kind
def meshes_cut_and_joined() -> object:
    mesh = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("pp", "dp", "tp"))
    found: list[object] = []
    for names in ("pp", "tp", ("pp", "dp"), ("pp", "tp"), ("dp", "tp"), ("pp", "dp", "tp")):
        part: Any = mesh[names]
        found += [
            part.mesh,
            part.get_coordinate(),
            tried(part.get_rank),
        ]
        flat = tried(part._flatten)
        if isinstance(flat, DeviceMesh):
            total = numbers()
            dist.all_reduce(total, group=flat.get_group())
            found += [flat.mesh, flat.get_local_rank(), total, dist.get_process_group_ranks(flat.get_group())]
        else:
            found.append(flat)
    named = tried(mesh["dp", "tp"]._flatten, "dp_tp")
    found += [mesh["dp_tp"].size() if isinstance(named, DeviceMesh) else named]
    whole = init_device_mesh("cpu", (4,), mesh_dim_names=("all",))
    apart = tried(whole._unflatten, 0, (2, 2), ("one", "two"))
    found += [apart.get_coordinate(), apart["two"].mesh] if isinstance(apart, DeviceMesh) else [apart]
    joined = tried(DeviceMesh._concatenate, [mesh["pp"], mesh["tp"]])
    found += [joined.mesh] if isinstance(joined, DeviceMesh) else [joined]
    four = init_device_mesh("cpu", (1, 2, 1, 2), mesh_dim_names=("a", "b", "c", "d"))
    tensor = distribute_tensor(torch.arange(16.0).reshape(4, 4), four["b", "d"], [Shard(0), Shard(1)])
    return [*found, tensor.to_local(), tensor.full_tensor(), repr(mesh)]


@kind
def redistributed() -> object:
    mesh, found = grid(), list[object]()
    ways: list[Placement] = [Replicate(), Shard(0), Shard(1)]
    given = torch.arange(24.0).reshape(6, 4)
    for before in product(ways, ways):
        tensor = distribute_tensor(given, mesh, before)
        found += [tensor.redistribute(mesh, after).to_local() for after in product(ways, ways)]
    partial = DTensor.from_local(given * (dist.get_rank() + 1), mesh, [Partial(), Partial("avg")], run_check=False)
    found += [partial.redistribute(mesh, after).to_local() for after in product(ways, ways)]
    wide: Any = distribute_tensor(given, mesh, [Shard(0), Replicate()]).requires_grad_()
    later = wide.redistribute(mesh, [Replicate(), Shard(1)], async_op=True)
    (later @ later.T).sum().backward()
    assert isinstance(wide.grad, DTensor)
    return [*found, wide.grad.full_tensor(), tensor.redistribute(mesh, [Shard(0), Shard(0)]).full_tensor()]


@kind
def subgroups() -> object:
    found: list[object] = []
    for make in (
        lambda: dist.new_subgroups(2),
        lambda: dist.new_subgroups_by_enumeration([[0, 3], [1, 2]]),
        lambda: (dist.new_group([1, 0], sort_ranks=False), None) if dist.get_rank() < 2 else (None, None),
    ):
        made: Any = tried(make)
        if isinstance(made, tuple) and made[0] is not None:
            group = made[0]
            total, objects = numbers(), [None] * group.size()
            dist.all_reduce(total, group=group)
            dist.all_gather_object(objects, dist.get_rank(), group=group)
            found += [total, objects, dist.get_group_rank(group, dist.get_rank()), group.rank(), group.size()]
        else:
            found.append(repr(made))
        dist.barrier()
    return found


@kind
def bound_to_a_device() -> object:
    """Check torch's refusal to bind the default group to a CPU, and that later calls work."""
    dist.barrier()
    dist.destroy_process_group()
    said = [tried(dist.init_process_group, "gloo", device_id=torch.device(device)) for device in ("cpu", "cuda:0")]
    dist.init_process_group("gloo")
    total = numbers()
    dist.all_reduce(total)
    return [*said, total]
