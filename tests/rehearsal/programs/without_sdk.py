"""A usual DDP script without taskd."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def train(model, optimizer):
    for step in range(40):
        optimizer.zero_grad()
        model(torch.ones(4, 8) * step).sum().backward()
        optimizer.step()


dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 2))
train(model, torch.optim.SGD(model.parameters(), lr=0.1))
