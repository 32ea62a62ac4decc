"""A plain training loop on an accelerator. DEVICE_CASE names its kind.

Nothing in a step waits for the device, except where a case requires it. Kills and reports work by files alone, and the
losses are reported at the end.
"""

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.scripts import diary
from tests.trainers.programs import moments, place

STEPS, ROWS, WIDTH, MICRO_BATCHES = 30, 32, 512, 4
CASE = os.environ["DEVICE_CASE"]
SAME_ROWS, DIVIDED = CASE in ("tensor", "pipeline"), CASE in ("fsdp2", "tensor", "pipeline")


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Sequential(nn.Linear(64, WIDTH), nn.GELU(), nn.Dropout(0.1)),
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU(), nn.Dropout(0.1)),
        nn.Linear(WIDTH, 10),
    )


def batch_of(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    rank = 0 if SAME_ROWS else dist.get_rank()
    numbers = torch.Generator().manual_seed(step * dist.get_world_size() + rank)
    rows = torch.randn(ROWS, 64, generator=numbers)
    return rows.to(place.DEVICE), (rows[:, :10].argmax(1)).to(place.DEVICE)


def passing(_module, _rows, out) -> None:
    moments.moment("forward")
    if out.requires_grad:
        out.register_hook(moments.into_backward)  # by then the gradients of later layers are being sent


def sharded(network: nn.Sequential) -> Any:
    sizes = (dist.get_world_size(),) if CASE == "fsdp2" else (2, dist.get_world_size() // 2)
    mesh = init_device_mesh(place.DEVICE.type, sizes, mesh_dim_names=("copies", "parts")[-len(sizes) :])
    for block in network:
        fully_shard(block, mesh=mesh)
    return fully_shard(network, mesh=mesh)


def tensor_parallel(network: nn.Sequential) -> Any:
    mesh = init_device_mesh(place.DEVICE.type, (dist.get_world_size(),), mesh_dim_names=("tensor",))
    last = RowwiseParallel(input_layouts=Replicate())
    return parallelize_module(network, mesh, {"0.0": ColwiseParallel(), "1.0": RowwiseParallel(), "2": last})


def graphed(network: nn.Sequential) -> Any:
    """Return the model as CUDA graphs of both passes, captured before DDP as in torch's documentation."""
    rows = torch.randn(ROWS, 64, device=place.DEVICE)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        captured: Any = torch.cuda.make_graphed_callables(network, (rows,))
        model = DistributedDataParallel(captured, bucket_cap_mb=1)
    torch.cuda.current_stream().wait_stream(stream)
    model.register_forward_hook(passing)
    return model


def parallel(network: nn.Sequential) -> Any:
    if CASE in ("fsdp2", "hsdp"):
        return sharded(network)
    if CASE == "tensor":
        return tensor_parallel(network)
    if CASE == "pipeline":
        return network[:1] if dist.get_rank() == 0 else network[1:]
    if CASE == "graph":
        return graphed(network)
    model = DistributedDataParallel(network, bucket_cap_mb=1)
    return torch.compile(model) if CASE == "compile" else model


dist.init_process_group("gloo" if CASE == "gloo" else place.BACKEND)
torch.manual_seed(0)
net = network().to(place.DEVICE)
if CASE not in ("graph", "compile", "pipeline"):
    net[0].register_forward_hook(passing)
model: Any = parallel(net)
if CASE in ("compile", "pipeline"):
    model.register_forward_hook(passing)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**12, growth_interval=7, enabled=CASE == "amp")
state = None
if not moments.PLAIN:
    state = taskd.TrainState(
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        scaler=scaler,
        backup_every=2 if DIVIDED else None,
        replica_set=f"stage {dist.get_rank()}" if CASE == "pipeline" else None,
    )
means = torch.zeros(STEPS, device=place.DEVICE)


def backward_of(step: int) -> torch.Tensor:
    """Compute the gradients of a step. Return its loss."""
    rows, kinds = batch_of(step)
    if CASE == "pipeline":
        return staged(rows, kinds)
    with torch.autocast("cuda", dtype=torch.float16, enabled=CASE == "amp"):
        loss = cross_entropy(model(rows), kinds)
    scaler.scale(loss).backward()
    return loss.detach()


def staged(rows: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
    losses: list[torch.Tensor] = []
    stage = PipelineStage(model, dist.get_rank(), dist.get_world_size(), place.DEVICE)
    schedule = ScheduleGPipe(stage, MICRO_BATCHES, loss_fn=cross_entropy)
    if dist.get_rank() == 0:
        schedule.step(rows)
        return torch.zeros((), device=place.DEVICE)
    schedule.step(target=kinds, losses=losses)
    return torch.stack(losses).mean().detach()


def train() -> None:
    for step in range(0 if state is None else state.step, STEPS):
        moments.at(step + 1)
        optimizer.zero_grad()
        loss = backward_of(step)
        scaler.unscale_(optimizer)
        moments.moment("reduced")
        scaler.step(optimizer)
        moments.moment("stepped")
        scaler.update()
        scheduler.step()
        means[step] = loss
        if state is not None:
            state.commit()
        moments.moment("committed")


train() if state is None else taskd.resilient(state)(train)()
diary.finish(model, optimizer, scheduler, scaler, numbers=torch.rand(3, device=place.DEVICE), last=means[-1])
diary.leave()
