"""Groups beside the default one: metrics go over them, and DDP has its own."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.scripts import diary
from tests.scripts.models import batch_of, network

STEPS = 40

dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
both = dist.new_group(list(range(dist.get_world_size())))
pair = dist.new_group([0, 1])
model = DistributedDataParallel(network(), process_group=both)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
state = taskd.TrainState(model=model, optimizer=optimizer, seed=1)
diary.moment("setup done")


@taskd.resilient(state)
def train():
    for step in range(state.step, STEPS):
        diary.moment("step")
        ids, rows, kinds = batch_of(step, dist.get_rank(), dist.get_world_size())
        if dist.get_rank() in (0, 1):
            dist.all_reduce(rows, group=pair)
        optimizer.zero_grad()
        loss = cross_entropy(model(rows), kinds)
        diary.saw(step, loss, ids)
        loss.backward()
        diary.moment("backward")
        optimizer.step()
        diary.moment("stepped")
        state.commit()
        diary.moment("committed")


train()
diary.moment("after")
diary.finish(model, optimizer, step=state.step)
diary.leave()
