"""numpy computes the learning rate and the best loss: both are numbers of numpy's in the state."""

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.scripts import diary
from tests.scripts.models import batch_of, network

STEPS = 40
RATE = 1e-2


class Best:
    """The best mean of the last ten losses."""

    def __init__(self):
        self.recent, self.best = [], np.inf

    def add(self, loss):
        self.recent = [*self.recent[-9:], loss]
        self.best = min(self.best, np.average(self.recent))

    def state_dict(self):
        return {"recent": self.recent, "best": self.best}

    def load_state_dict(self, values):
        self.recent, self.best = values["recent"], values["best"]


dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
best = Best()
state = taskd.TrainState(model=model, optimizer=optimizer, replicated={"best": best}, seed=1)
diary.moment("setup done")


@taskd.resilient(state)
def train():
    for step in range(state.step, STEPS):
        diary.moment("step")
        for group in optimizer.param_groups:
            group["lr"] = 0.5 * (1 + np.cos(np.pi * step / STEPS)) * RATE
        ids, rows, kinds = batch_of(step, dist.get_rank(), dist.get_world_size())
        optimizer.zero_grad()
        loss = cross_entropy(model(rows), kinds)
        diary.saw(step, loss, ids)
        loss.backward()
        diary.moment("backward")
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        optimizer.step()
        best.add(mean.item())
        state.commit()
        diary.moment("committed")


train()
diary.moment("after")
diary.finish(model, optimizer, step=state.step, best=float(best.best))
diary.leave()
