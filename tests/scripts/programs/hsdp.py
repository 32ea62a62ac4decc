"""HSDP: sharded over two ranks, replicated on two others; accumulated micro-batches, clipped gradients."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

import taskd
from tests.scripts import diary
from tests.scripts.models import batch_of, network

STEPS = 25

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
diary.moment("setup")
torch.manual_seed(0)
inner = network()
model = torch.nn.Sequential(inner, torch.nn.ReLU(), torch.nn.Linear(4, 4))
fully_shard(inner[0], mesh=mesh)
fully_shard(model, mesh=mesh)  # has parameters of its own, which stay whole from the forward to the backward pass
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
state = taskd.TrainState(model=model, optimizer=optimizer, seed=1)
diary.moment("setup done")


@taskd.resilient(state)
def train():
    for step in range(state.step, STEPS):
        diary.moment("step")
        for part in range(2):
            model.set_requires_gradient_sync(part == 1)
            ids, rows, kinds = batch_of(2 * step + part, dist.get_rank(), dist.get_world_size())
            loss = cross_entropy(model(rows), kinds)
            loss.register_hook(lambda gradient: diary.moment("into backward") or gradient)
            (loss / 2).backward()
            diary.saw(2 * step + part, loss, ids)
            diary.moment("backward")
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        diary.moment("clipped")
        optimizer.step()
        optimizer.zero_grad()
        diary.moment("stepped")
        state.commit()
        diary.moment("committed")


train()
diary.moment("after")
diary.finish(model, optimizer, step=state.step)
diary.leave()
