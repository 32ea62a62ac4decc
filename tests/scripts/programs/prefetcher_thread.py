"""A prefetcher with a thread of its own: how far it is ahead depends on the moment."""

import queue
import threading

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
    """Fetches batches in another thread."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        fetched: queue.Queue = queue.Queue(maxsize=1)

        def fetch():
            for batch in self.loader:
                fetched.put(batch)
            fetched.put(None)

        threading.Thread(target=fetch, daemon=True).start()
        while (batch := fetched.get()) is not None:
            yield batch


dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = Rows()
sampler: DistributedSampler = DistributedSampler(data, shuffle=True, seed=3)
loader = DataLoader(data, batch_size=4, sampler=sampler)
batches = Prefetcher(loader)
state = taskd.TrainState(model=model, optimizer=optimizer, loader=loader, sampler=sampler, seed=1)
diary.moment("setup done")


@taskd.resilient(state)
def train():
    for epoch in state.epochs(EPOCHS):
        sampler.set_epoch(epoch)
        for ids, rows, kinds in batches:
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
