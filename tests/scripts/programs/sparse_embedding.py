"""An embedding with sparse gradients, under DDP."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.scripts import diary
from tests.scripts.models import KINDS, ROWS, WIDTH, batch_of

STEPS = 40


class Tagger(nn.Module):
    """A kind for each number of a row."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(ROWS, WIDTH, sparse=True)
        self.head = nn.Linear(WIDTH, KINDS)

    def forward(self, ids):
        return self.head(self.embedding(ids).relu())


dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
model = DistributedDataParallel(Tagger())
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
state = taskd.TrainState(model=model, optimizer=optimizer, seed=1)
diary.moment("setup done")


@taskd.resilient(state)
def train():
    for step in range(state.step, STEPS):
        diary.moment("step")
        ids, _, kinds = batch_of(step, dist.get_rank(), dist.get_world_size())
        optimizer.zero_grad()
        loss = cross_entropy(model(ids), kinds)
        diary.saw(step, loss, ids)
        loss.backward()
        diary.moment("backward")
        optimizer.step()
        state.commit()
        diary.moment("committed")


train()
diary.moment("after")
diary.finish(model, optimizer, step=state.step)
diary.leave()
