"""A user's script that torch warns of: its own line is to be named, as often as without taskd."""

import os
import sys
import warnings

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

os.environ.setdefault("RANK", "0")
warnings.simplefilter("always")
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(2, 2), device_ids=[], find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
scheduler.step()  # before the optimizer's: torch warns of it
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
dist.reduce_op.SUM  # noqa: B018  deprecated: torch warns where it is read
dist.destroy_process_group()
sys.exit(0)
