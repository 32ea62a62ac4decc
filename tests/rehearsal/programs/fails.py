"""A script that fails by itself."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import taskd

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = taskd.TrainState(model=model, optimizer=optimizer)
raise ValueError("there is no data")
