"""A script whose data differ each time."""

import random

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import taskd

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = taskd.TrainState(model=model, optimizer=optimizer)


@taskd.resilient(state)
def train():
    while state.step < 60:
        optimizer.zero_grad()
        model(torch.full((4, 8), random.random())).sum().backward()
        optimizer.step()
        state.commit()


train()
