"""An iterable dataset that shuffles with one generator for all of its passes, and counts them."""

import random

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

import taskd
from tests.scripts import diary
from tests.scripts.models import ROWS, Rows, network

EPOCHS = 4


class Shuffled(IterableDataset):
    """This rank's rows, in another order in each pass."""

    def __init__(self, rank, world, seed=5):
        self.source = Rows()
        self.numbers = list(range(rank, ROWS, world))
        self.rng = random.Random(seed + rank)
        self.epoch = 0

    def __iter__(self):
        self.epoch += 1
        self.rng.shuffle(self.numbers)
        for number in self.numbers:
            yield self.source[number]


dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = DataLoader(Shuffled(dist.get_rank(), dist.get_world_size()), batch_size=4)
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
