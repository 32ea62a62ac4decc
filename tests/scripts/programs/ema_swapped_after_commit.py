"""The average of the weights takes the place of the weights for an evaluation, which is given to `after_commit`."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.scripts import diary
from tests.scripts.models import batch_of, network

STEPS = 40


class Average:
    """An exponential moving average of a module's parameters."""

    def __init__(self, module, decay=0.9):
        self.decay = decay
        self.shadow = [parameter.detach().clone() for parameter in module.parameters()]

    @torch.no_grad()
    def update(self, module):
        for mine, its in zip(self.shadow, module.parameters(), strict=True):
            mine.mul_(self.decay).add_(its, alpha=1 - self.decay)

    def state_dict(self):
        return {"shadow": self.shadow}

    def load_state_dict(self, values):
        for mine, its in zip(self.shadow, values["shadow"], strict=True):
            mine.copy_(its)


dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
average = Average(model.module)
state = taskd.TrainState(model=model, optimizer=optimizer, replicated={"average": average}, seed=1)
diary.moment("setup done")


def evaluate(step):
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    for parameter, value in zip(model.parameters(), average.shadow, strict=True):
        parameter.data.copy_(value)
    model.eval()
    total = torch.zeros(())
    for part in range(3):
        _, rows, kinds = batch_of(900 + part, dist.get_rank(), dist.get_world_size(), size=8)
        with torch.no_grad():
            total += cross_entropy(model.module(rows), kinds)
    diary.moment("evaluation")
    dist.all_reduce(total)
    model.train()
    for parameter, value in zip(model.parameters(), weights, strict=True):
        parameter.data.copy_(value)
    diary.saw(f"evaluation {step}", total)


state.after_commit(evaluate, every=10)


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
        average.update(model.module)
        state.commit()
        diary.moment("committed")


train()
diary.moment("after")
diary.finish(model, optimizer, average, step=state.step)
diary.leave()
