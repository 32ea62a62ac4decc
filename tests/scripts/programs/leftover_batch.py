"""37 batches an epoch, two of them for a step: the last one is drawn, and never used."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import taskd
from tests.scripts import diary
from tests.scripts.models import Rows, network

EPOCHS = 3
EVERY = 2

dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = Rows(148)
sampler: DistributedSampler = DistributedSampler(data, shuffle=True, seed=3)
loader = DataLoader(data, batch_size=2, sampler=sampler)
steps_per_epoch = len(loader) // EVERY
state = taskd.TrainState(model=model, optimizer=optimizer, loader=loader, sampler=sampler, seed=1)
diary.moment("setup done")


@taskd.resilient(state)
def train():
    optimizer.zero_grad()
    for epoch in state.epochs(EPOCHS):
        sampler.set_epoch(epoch)
        inner = state.step % steps_per_epoch
        parts = 0
        for ids, rows, kinds in loader:
            diary.moment("step")
            loss = cross_entropy(model(rows), kinds) / EVERY
            diary.saw((epoch, ids.tolist()), loss)
            loss.backward()
            diary.moment("backward")
            parts += 1
            if parts == EVERY:
                optimizer.step()
                optimizer.zero_grad()
                state.commit()
                inner, parts = inner + 1, 0
                diary.moment("committed" if inner < steps_per_epoch else "last of the epoch")
            if inner == steps_per_epoch:
                break


train()
diary.moment("after")
diary.finish(model, optimizer, step=state.step)
diary.leave()
