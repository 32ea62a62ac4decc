"""A user's script that causes warnings by torch. They must name its own lines, as often as without taskd."""

import warnings

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

warnings.simplefilter("always")
dist.init_process_group("gloo")
model = DistributedDataParallel(
    torch.nn.Linear(2, 2), broadcast_buffers=False, check_reduction=True, find_unused_parameters=True
)
model._set_static_graph()
model._set_static_graph()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
scheduler.step()  # before the optimizer's
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
dist._all_gather_base(torch.zeros(2), torch.zeros(2))
dist.reduce_op.SUM  # noqa: B018  deprecated where it is read
dist.destroy_process_group()
