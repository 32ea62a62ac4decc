"""All ranks die in one step, and nobody is left to give its state: a plain loop over a loader, with random numbers."""

import os

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import taskd
from tests.scripts import diary
from tests.scripts.models import Rows, network

EPOCHS = 4
RAISES_AT = int(os.environ.get("RAISES_AT", "-1"))
GROWS_AT = int(os.environ.get("GROWS_AT", "-1"))

dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Dropout(0.1), network()))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
sampler: DistributedSampler = DistributedSampler(Rows())
loader = DataLoader(Rows(), batch_size=8, sampler=sampler)
state = taskd.TrainState(model=model, optimizer=optimizer, loader=loader)
diary.moment("setup done")


def stumble(step):
    """All ranks raise the same, once: a file server that is away for a moment. Or all need too much memory, once."""
    before = diary.FOLDER / f"stumbled-{dist.get_rank()}"
    if step in (RAISES_AT, GROWS_AT) and os.environ.get("SCRIPT_KILLS") and not before.exists():
        before.touch()
        if step == RAISES_AT:
            raise OSError("the file server does not answer")
        torch.ones(4 << 30, dtype=torch.uint8)


@taskd.resilient(state)
def train():
    for _epoch in state.epochs(EPOCHS):
        for ids, rows, kinds in loader:
            diary.moment("step")
            stumble(state.step)
            optimizer.zero_grad()
            loss = cross_entropy(model(rows), kinds)
            diary.saw(state.step, loss, ids)
            loss.backward()
            diary.moment("backward")
            optimizer.step()
            diary.moment("stepped")
            state.commit()
            diary.moment("committed")


train()
diary.moment("after")
diary.finish(model, optimizer, step=state.step, numbers=torch.rand(3))
diary.leave()
