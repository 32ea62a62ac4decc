"""Gradients of five batches are added up, and those of the last two of an epoch: by the number of the batch."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import taskd
from tests.scripts import diary
from tests.scripts.models import Rows, network

EPOCHS = 4
EVERY = 5

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
        optimizer.zero_grad()
        for i, (ids, rows, kinds) in enumerate(loader):
            diary.moment("step")
            loss = cross_entropy(model(rows), kinds) / EVERY
            diary.saw((epoch, ids.tolist()), loss)
            loss.backward()
            diary.moment("backward")
            if (i + 1) % EVERY == 0 or i + 1 == len(loader):
                optimizer.step()
                optimizer.zero_grad()
                state.commit()
                diary.moment("committed")


train()
diary.moment("after")
diary.finish(model, optimizer, step=state.step)
diary.leave()
