"""The same with an average that stores the weights and puts them back, behind the inner loop."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import taskd
from tests.scripts import diary
from tests.scripts.models import Rows, network

EPOCHS = 4


class Average:
    """An average of parameters that can stand in for them."""

    def __init__(self, parameters, decay=0.9):
        self.decay = decay
        self.shadow = [parameter.detach().clone() for parameter in parameters]
        self.stored = []

    @torch.no_grad()
    def step(self, parameters):
        for mine, its in zip(self.shadow, parameters, strict=True):
            mine.sub_((1 - self.decay) * (mine - its))

    def store(self, parameters):
        self.stored = [parameter.detach().clone() for parameter in parameters]

    def copy_to(self, parameters):
        for mine, its in zip(self.shadow, parameters, strict=True):
            its.data.copy_(mine)

    def restore(self, parameters):
        for stored, its in zip(self.stored, parameters, strict=True):
            its.data.copy_(stored)
        self.stored = []

    def state_dict(self):
        return {"decay": self.decay, "shadow": self.shadow}

    def load_state_dict(self, values):
        self.decay, self.shadow = values["decay"], values["shadow"]


dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
average = Average(model.parameters())
data = Rows()
sampler: DistributedSampler = DistributedSampler(data, shuffle=True, seed=3)
loader = DataLoader(data, batch_size=4, sampler=sampler)
state = taskd.TrainState(
    model=model, optimizer=optimizer, loader=loader, sampler=sampler, replicated={"average": average}, seed=1
)
diary.moment("setup done")


def evaluate():
    average.store(model.parameters())
    average.copy_to(model.parameters())
    model.eval()
    with torch.no_grad():
        total = cross_entropy(model.module(data.rows), data.kinds)
    diary.moment("evaluation")
    dist.all_reduce(total)
    model.train()
    average.restore(model.parameters())
    return total


@taskd.resilient(state)
def train():
    for epoch in state.epochs(EPOCHS):
        sampler.set_epoch(epoch)
        for ids, rows, kinds in loader:
            diary.moment("step")
            optimizer.zero_grad()
            loss = cross_entropy(model(rows), kinds)
            diary.saw(state.step, loss, ids)
            loss.backward()
            diary.moment("backward")
            optimizer.step()
            average.step(model.parameters())
            state.commit()
            diary.moment("committed")
        diary.saw(f"end of epoch {epoch}", evaluate())


train()
diary.moment("after")
diary.finish(model, optimizer, average, step=state.step)
diary.leave()
