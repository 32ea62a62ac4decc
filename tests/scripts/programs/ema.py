"""An average of the weights, kept by a class of the script's own and given to the state."""

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


model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
ema = Average(model.module)
state = taskd.TrainState(model=model, optimizer=optimizer, replicated={"ema": ema}, seed=1)
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
        ema.update(model.module)
        diary.moment("averaged")
        state.commit()
        diary.moment("committed")


train()
diary.moment("after")
diary.finish(model, optimizer, ema, step=state.step)
diary.leave()
