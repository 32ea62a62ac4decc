"""Kinds of parallel training, a few steps of each."""

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from tests.sharded.kinds import kind

STEPS = 3


def net(width: int = 16) -> nn.Sequential:
    """Return a network that is the same on every rank."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)) for _ in range(4)]
    return nn.Sequential(nn.Embedding(32, width), *layers, nn.LayerNorm(width), nn.Linear(width, 32))


def batch(step: int, width: int = 0, group: "dist.ProcessGroup | None" = None) -> "tuple[torch.Tensor, torch.Tensor]":
    """Return one batch of each replica."""
    draw = torch.Generator().manual_seed(100 * step + (dist.get_rank(group) if group is not None else 0))
    shape = (8, 16)
    if width:
        return torch.randn(16, width, generator=draw), torch.randn(16, width, generator=draw)
    return torch.randint(32, shape, generator=draw), torch.randint(32, shape, generator=draw)


def loss_of(output: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
    return cross_entropy(output.flatten(0, 1), kinds.flatten())


def train(model: nn.Module, optimizer: torch.optim.Optimizer, group: "dist.ProcessGroup | None") -> "list[object]":
    """Train some steps with clipping. Return parameters, gradients and losses."""
    losses = []
    for step in range(STEPS):
        rows, kinds = batch(step, group=group)
        optimizer.zero_grad()
        loss = loss_of(model(rows), kinds)
        loss.backward()
        norm = clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses += [loss, norm]
    return [*losses, *model.parameters(), *(parameter.grad for parameter in model.parameters())]


@kind
def ddp() -> object:
    model = DistributedDataParallel(net())
    return train(model, torch.optim.AdamW(model.parameters(), lr=1e-2), dist.group.WORLD)


@kind
def ddp_over_mesh() -> object:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "other"))
    model = DistributedDataParallel(net(), device_mesh=mesh["dp"])
    return train(model, torch.optim.SGD(model.parameters(), lr=1e-2), mesh.get_group("dp"))


def sharded(model: nn.Sequential, mesh: "DeviceMesh | None", **options: Any) -> nn.Sequential:
    for layer in model:
        if isinstance(layer, nn.Sequential):
            fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)  # type: ignore[return-value]  # the embedding and the head are the root's


@kind
def fsdp2() -> object:
    model = sharded(net(), None)
    return train(model, torch.optim.AdamW(model.parameters(), lr=1e-2), dist.group.WORLD)


@kind
def fsdp2_mixed_and_accumulated() -> object:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("dp_shard",))
    model = sharded(net(), mesh, mp_policy=policy, reshard_after_forward=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    assert isinstance(model, FSDPModule)
    for step in range(STEPS):
        for part in range(2):
            model.set_requires_gradient_sync(part == 1)
            rows, kinds = batch(10 * step + part, group=mesh.get_group())
            loss_of(model(rows), kinds).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return list(model.parameters())


@kind
def hsdp() -> object:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
    model = sharded(net(), mesh)
    return train(model, torch.optim.AdamW(model.parameters(), lr=1e-2), dist.group.WORLD)


@kind
def fsdp1() -> object:
    model = FullyShardedDataParallel(net(), use_orig_params=True, device_id=torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(STEPS):
        rows, kinds = batch(step, group=dist.group.WORLD)
        optimizer.zero_grad()
        loss_of(model(rows), kinds).backward()
        optimizer.step()
    return list(model.parameters())


def tensor_parallel(model: nn.Sequential, mesh: DeviceMesh) -> nn.Sequential:
    plan = {f"{at}.{part}": way() for at in range(1, 5) for part, way in ((0, ColwiseParallel), (2, RowwiseParallel))}
    return parallelize_module(model, mesh, plan)  # type: ignore[return-value, arg-type]


@kind
def tensor_parallel_alone() -> object:
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
    model = tensor_parallel(net(), mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    for step in range(STEPS):
        rows, kinds = batch(step)
        optimizer.zero_grad()
        loss_of(model(rows), kinds).backward()
        optimizer.step()
    return list(model.parameters())


@kind
def tensor_parallel_with_data_parallel() -> object:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = tensor_parallel(net(), mesh["tp"])
    for at in range(1, 5):
        fully_shard(model[at], mesh=mesh["dp"])
    optimizer = torch.optim.AdamW([each for at in range(1, 5) for each in model[at].parameters()], lr=1e-2)
    for step in range(STEPS):
        rows, kinds = batch(step, group=mesh.get_group("dp"))
        optimizer.zero_grad()
        loss_of(model(rows), kinds).backward()
        optimizer.step()
    return [each for at in range(1, 5) for each in model[at].parameters()]


@kind
def loss_in_parallel() -> object:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))["tp"]
    head = parallelize_module(nn.Linear(16, 32), mesh, ColwiseParallel(use_local_output=False))
    rows, _ = batch(0, 16)
    with loss_parallel():
        loss = cross_entropy(head(rows), torch.arange(16))
        loss.backward()
    return [loss, *(parameter.grad for parameter in head.parameters())]


def pipeline(name: str, chunks: int, per_rank: int, *, v_shape: bool = False) -> object:
    ranks, at = dist.get_world_size(), dist.get_rank()
    count = ranks * per_rank
    mine = [at, count - 1 - at] if v_shape else [at + ranks * part for part in range(per_rank)]
    torch.manual_seed(0)
    whole = [nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.Tanh()) for _ in range(count)]
    modules = [copy.deepcopy(whole[number]) for number in mine]
    stages = [
        PipelineStage(module, number, count, torch.device("cpu")) for module, number in zip(modules, mine, strict=True)
    ]
    made = getattr(schedules, name)(stages if per_rank > 1 else stages[0], chunks, loss_fn=mse_loss)
    optimizer = torch.optim.SGD([each for module in modules for each in module.parameters()], lr=1e-2)
    losses: list[torch.Tensor] = []
    first, last = 0 in mine, count - 1 in mine
    for step in range(STEPS):
        rows, target = batch(step, 16)
        optimizer.zero_grad()
        keywords: dict[str, Any] = {"target": target, "losses": losses} if last else {}
        made.step(*([rows] if first else []), **keywords)
        optimizer.step()
    return [*losses, *(each for module in modules for each in module.state_dict().values())]


@kind
def pipeline_gpipe() -> object:
    return pipeline("ScheduleGPipe", 4, 1)


@kind
def pipeline_1f1b() -> object:
    return pipeline("Schedule1F1B", 4, 1)


@kind
def pipeline_interleaved() -> object:
    return pipeline("ScheduleInterleaved1F1B", 4, 2)


@kind
def pipeline_breadth_first() -> object:
    return pipeline("ScheduleLoopedBFS", 4, 2)


@kind
def pipeline_interleaved_zero_bubble() -> object:
    return pipeline("ScheduleInterleavedZeroBubble", 4, 2)


@kind
def pipeline_zbv() -> object:
    return pipeline("ScheduleZBVZeroBubble", 8, 2, v_shape=True)


@kind
def pipeline_dual() -> object:
    return pipeline("ScheduleDualPipeV", 8, 2, v_shape=True)


@kind
def context_parallel() -> object:
    from torch.distributed.tensor.experimental import context_parallel as over

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))["cp"]
    torch.manual_seed(0)
    rows, weights = torch.randn(2, 2, 8, 4), torch.randn(3, 4, requires_grad=True)
    with over(mesh, buffers=[rows], buffer_seq_dims=[2]):
        query, key, value = (rows * weight for weight in weights)
        output = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        output.sum().backward()
        return [output, weights.grad]


@kind
def zero_1() -> object:
    model = DistributedDataParallel(net())
    return train(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2), dist.group.WORLD)


@kind
def zero_1_over_a_group() -> object:
    group, _ = dist.new_subgroups(2)
    model = DistributedDataParallel(net(), process_group=group)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, process_group=group, lr=1e-2)
    return train(model, optimizer, group)
