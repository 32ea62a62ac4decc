"""Two resilient functions, one after the other: a warm-up and the training."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.scripts import diary
from tests.scripts.models import batch_of, network

STEPS = 25

dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
state = taskd.TrainState(model=model, optimizer=optimizer, seed=1)
diary.moment("setup done")


def steps_until(end):
    """What both functions do."""
    for step in range(state.step, end):
        diary.moment("step")
        ids, rows, kinds = batch_of(step, dist.get_rank(), dist.get_world_size())
        optimizer.zero_grad()
        loss = cross_entropy(model(rows), kinds)
        diary.saw(step, loss, ids)
        loss.backward()
        optimizer.step()
        diary.moment("stepped")
        state.commit()
        diary.moment("committed")


@taskd.resilient(state)
def warm_up():
    steps_until(5)


@taskd.resilient(state)
def train():
    steps_until(STEPS)


warm_up()
for group in optimizer.param_groups:
    group["lr"] = 1e-3
train()
diary.moment("after")
diary.finish(model, optimizer, step=state.step)
diary.leave()
