"""A module counts its passes and cools down in each: plain numbers, which are in no `state_dict`."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.scripts import diary
from tests.scripts.models import batch_of, network

STEPS = 40


class Cooling(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = network()
        self.heat = 1.0
        self.passes = {"all": 0}

    def forward(self, rows):
        self.passes["all"] += 1
        if self.passes["all"] % 2:
            self.heat *= 0.95
        return self.inner(rows) * (1 + self.heat)


dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
model = DistributedDataParallel(Cooling())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
state = taskd.TrainState(model=model, optimizer=optimizer, seed=1)
diary.moment("setup done")


@taskd.resilient(state)
def train():
    for step in range(state.step, STEPS):
        diary.moment("step")
        ids, rows, kinds = batch_of(step, dist.get_rank(), dist.get_world_size())
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
diary.finish(model, optimizer, step=state.step, heat=model.module.heat, passes=model.module.passes)
diary.leave()
