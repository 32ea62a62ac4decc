"""A script that comes to its end within a rehearsal. With `once` it cannot be started anew after its end."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import taskd

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = taskd.TrainState(model=model, optimizer=optimizer, seed=1)


@taskd.resilient(state)
def train():
    while state.step < 24:
        optimizer.zero_grad()
        loss = model(torch.full((4, 8), 0.01 * state.step)).square().mean()
        loss.backward()
        optimizer.step()
        state.commit(loss)


train()
if dist.get_rank() == 0 and "once" in sys.argv:
    Path("result").mkdir()
print(f"rank {dist.get_rank()} has ended at step {state.step}", flush=True)
dist.barrier()
