"""A model sharded over two ranks, whose script states replica sets: `stated.py NAME`. RANK in NAME is the rank."""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import taskd

dist.init_process_group("gloo")
model = torch.nn.Linear(8, 8)
fully_shard(model, mesh=init_device_mesh("cpu", (2,), mesh_dim_names=("dp",)))
optimizer = torch.optim.AdamW(model.parameters())
stated = sys.argv[1].replace("RANK", os.environ["RANK"])
state = taskd.TrainState(model=model, optimizer=optimizer, replica_set=stated)


@taskd.resilient(state)
def train() -> None:
    for _ in range(state.step, 3):
        optimizer.zero_grad()
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        state.commit()


train()
print(f"rank {dist.get_rank()} has done step {state.step}", flush=True)
dist.destroy_process_group()
