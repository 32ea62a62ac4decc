"""A script that commits each micro-batch."""

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
    while state.step < 40:
        model(torch.ones(4, 8)).sum().backward()
        if state.step % 2:
            optimizer.step()
            optimizer.zero_grad()
        state.commit()


train()
