"""A scheduler that is none of torch's and gets the number of the update; two reduced numbers for the log before it."""

import math

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.scripts import diary
from tests.scripts.models import batch_of, network

STEPS = 40


class Cosine:
    """Sets the rate for an update, counted by whoever calls it."""

    def __init__(self, optimizer, updates, warm_up=8):
        self.optimizer = optimizer
        self.rates = [group["lr"] for group in optimizer.param_groups]
        self.updates, self.warm_up = updates, warm_up
        self.step_update(0)

    def step_update(self, update):
        share = (update + 1) / self.warm_up
        if share > 1:
            share = 0.5 + 0.5 * math.cos(math.pi * update / self.updates)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * share

    def state_dict(self):
        return {"rates": self.rates, "updates": self.updates, "warm_up": self.warm_up}

    def load_state_dict(self, values):
        self.__dict__.update(values)


class Average:
    """An exponential moving average of a module's weights."""

    def __init__(self, module):
        self.values = {name: value.detach().clone() for name, value in module.state_dict().items()}

    @torch.no_grad()
    def update(self, module):
        for name, value in module.state_dict().items():
            self.values[name].lerp_(value, 0.1)

    def state_dict(self):
        return self.values

    def load_state_dict(self, values):
        for name, value in values.items():
            self.values[name].copy_(value)


def mean_of(value):
    total = value.detach().clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = Cosine(optimizer, STEPS)
average = Average(model.module)
state = taskd.TrainState(model=model, optimizer=optimizer, scheduler=scheduler, replicated={"average": average}, seed=1)
diary.moment("setup done")


@taskd.resilient(state)
def train():
    for step in range(state.step, STEPS):
        diary.moment("step")
        ids, rows, kinds = batch_of(step, dist.get_rank(), dist.get_world_size())
        optimizer.zero_grad()
        scores = model(rows)
        loss = cross_entropy(scores, kinds)
        diary.saw(step, loss, ids, optimizer.param_groups[0]["lr"])
        loss.backward()
        diary.moment("backward")
        optimizer.step()
        average.update(model.module)
        mean = mean_of(loss)
        diary.moment("reduced")
        right = mean_of((scores.argmax(1) == kinds).float().mean())
        print(f"step {step}: loss {mean:.4f}, accuracy {right:.2f}")
        scheduler.step_update(step + 1)
        state.commit()
        diary.moment("committed")


train()
diary.moment("after")
diary.finish(model, optimizer, average, step=state.step)
diary.leave()
