"""A loop of its own on an accelerator; DEVICE_CASE says which.

Nothing in a step waits for the device, but for what a case needs: what kills and what is told are files alone, and the
losses are told at the end.
"""

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.scripts import diary
from tests.trainers.programs import moments, place

STEPS, WIDTH = 30, 512
CASE = os.environ["DEVICE_CASE"]


def network() -> nn.Module:
    return nn.Sequential(
        nn.Sequential(nn.Linear(64, WIDTH), nn.GELU(), nn.Dropout(0.1)),
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU(), nn.Dropout(0.1)),
        nn.Linear(WIDTH, 10),
    )


def batch_of(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    numbers = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
    rows = torch.randn(32, 64, generator=numbers)
    return rows.to(place.DEVICE), (rows[:, :10].argmax(1)).to(place.DEVICE)


def passing(_module, _rows, out) -> None:
    moments.moment("forward")
    out.register_hook(moments.into_backward)  # the gradients of what comes behind it are on their way then


dist.init_process_group("gloo" if CASE == "gloo" else place.BACKEND)
torch.manual_seed(0)
model: Any = network().to(place.DEVICE)
model[0].register_forward_hook(passing)
if CASE in ("fsdp2", "hsdp"):
    sizes = (dist.get_world_size(),) if CASE == "fsdp2" else (2, dist.get_world_size() // 2)
    mesh = init_device_mesh(place.DEVICE.type, sizes, mesh_dim_names=("copies", "parts")[-len(sizes) :])
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
else:
    model = DistributedDataParallel(model, bucket_cap_mb=1)
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
        backup_every=2 if CASE == "fsdp2" else None,
    )
means = torch.zeros(STEPS, device=place.DEVICE)


def train() -> None:
    for step in range(0 if state is None else state.step, STEPS):
        moments.at(step + 1)
        rows, kinds = batch_of(step)
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16, enabled=CASE == "amp"):
            loss = cross_entropy(model(rows), kinds)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        moments.moment("reduced")
        scaler.step(optimizer)
        moments.moment("stepped")
        scaler.update()
        scheduler.step()
        means[step] = loss.detach()
        if state is not None:
            state.commit()
        moments.moment("committed")


train() if state is None else taskd.resilient(state)(train)()
diary.finish(model, optimizer, scheduler, scaler, numbers=torch.rand(3, device=place.DEVICE), last=means[-1])
diary.leave()
