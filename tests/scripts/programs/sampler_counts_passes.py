"""A sampler that counts its own passes, and shuffles by their number."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Sampler

import taskd
from tests.scripts import diary
from tests.scripts.models import Rows, network

EPOCHS = 4


class Shuffled(Sampler):
    """This rank's share of another order in each pass."""

    def __init__(self, length, rank, world, seed=3):
        self.length, self.rank, self.world, self.seed = length, rank, world, seed
        self.passes = 0

    def __len__(self):
        return self.length // self.world

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed + self.passes)
        self.passes += 1
        order = torch.randperm(self.length, generator=generator).tolist()
        return iter(order[self.rank : len(self) * self.world : self.world])


dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = Rows()
sampler = Shuffled(len(data), dist.get_rank(), dist.get_world_size())
loader = DataLoader(data, batch_size=4, sampler=sampler)
state = taskd.TrainState(model=model, optimizer=optimizer, loader=loader, seed=1)
diary.moment("setup done")


@taskd.resilient(state)
def train():
    for _ in state.epochs(EPOCHS):
        for ids, rows, kinds in loader:
            diary.moment("step")
            optimizer.zero_grad()
            loss = cross_entropy(model(rows), kinds)
            diary.saw(state.step, loss, ids)
            loss.backward()
            diary.moment("backward")
            optimizer.step()
            state.commit()
            diary.moment("committed")


train()
diary.moment("after")
diary.finish(model, optimizer, step=state.step)
diary.leave()
