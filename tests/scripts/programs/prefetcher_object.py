"""A prefetcher object of each epoch, as apex has it: it keeps the next batch in an attribute, and asks for the end."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import taskd
from tests.scripts import diary
from tests.scripts.models import Rows, network

EPOCHS = 4


class Prefetcher:
    """Fetches a batch while the one before it is trained on."""

    def __init__(self, loader):
        self.batches = iter(loader)
        self.preload()

    def preload(self):
        try:
            self.next_batch = next(self.batches)
        except StopIteration:
            self.next_batch = None

    def next(self):
        batch = self.next_batch
        if batch is not None:
            self.preload()
        return batch


dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = Rows()
sampler: DistributedSampler = DistributedSampler(data, shuffle=True, seed=3)
loader = DataLoader(data, batch_size=4, sampler=sampler)
state = taskd.TrainState(model=model, optimizer=optimizer, loader=loader, sampler=sampler, seed=1)
diary.moment("setup done")


@taskd.resilient(state)
def train():
    for epoch in state.epochs(EPOCHS):
        sampler.set_epoch(epoch)
        batches = Prefetcher(loader)
        batch = batches.next()
        while batch is not None:
            ids, rows, kinds = batch
            diary.moment("step")
            optimizer.zero_grad()
            loss = cross_entropy(model(rows), kinds)
            diary.saw(state.step, loss, ids)
            loss.backward()
            diary.moment("backward")
            optimizer.step()
            state.commit()
            diary.moment("committed")
            batch = batches.next()
        diary.moment("epoch done")


train()
diary.moment("after")
diary.finish(model, optimizer, step=state.step)
diary.leave()
