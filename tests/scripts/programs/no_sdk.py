"""Plain torchrun without a snapshot: a restart begins anew."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from tests.scripts import diary
from tests.scripts.models import batch_of, network

dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(40):
    diary.moment("step")
    optimizer.zero_grad()
    ids, rows, kinds = batch_of(step, dist.get_rank(), dist.get_world_size())
    loss = cross_entropy(model(rows), kinds)
    diary.saw(step, loss, ids)
    loss.backward()
    diary.moment("backward")
    optimizer.step()
    diary.moment("stepped")
diary.moment("after")
diary.finish(model, optimizer)
diary.leave()
