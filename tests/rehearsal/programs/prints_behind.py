"""A script that prints after the commit, which a fault leaves out."""

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
    total = 0.0
    while state.step < 60:
        optimizer.zero_grad()
        loss = model(torch.full((4, 8), 0.01 * state.step)).square().mean()
        loss.backward()
        optimizer.step()
        total += loss.item()
        state.commit(loss)
        print(f"step {state.step} mean {total / state.step:.6f}", flush=True)


train()
