"""The next batch is fetched while the optimizer steps, and carried to the next step in the loop's own names."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import taskd
from tests.scripts import diary
from tests.scripts.models import Rows, network

STEPS = 40


def endless(loader):
    """Its batches, pass after pass."""
    while True:
        yield from loader


dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = Rows()
loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=True, seed=3))
state = taskd.TrainState(model=model, optimizer=optimizer, loader=loader, seed=1)
diary.moment("setup done")


@taskd.resilient(state)
def train():
    batches = endless(loader)
    ids, rows, kinds = next(batches)
    for step in range(state.step, STEPS):
        diary.moment("step")
        loss = cross_entropy(model(rows), kinds)
        diary.saw(step, loss, ids)
        ids, rows, kinds = next(batches)
        loss.backward()
        diary.moment("backward")
        optimizer.step()
        optimizer.zero_grad()
        state.commit()
        diary.moment("committed")


train()
diary.moment("after")
diary.finish(model, optimizer, step=state.step)
diary.leave()
