"""A StatefulDataLoader whose iterator is kept and asked for the next batch; a new one is made when it is exhausted."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

import taskd
from tests.scripts import diary
from tests.scripts.models import Rows, network

STEPS = 40

dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = Rows()
loader = StatefulDataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=True, seed=3))
state = taskd.TrainState(model=model, optimizer=optimizer, loader=loader, seed=1)
diary.moment("setup done")


@taskd.resilient(state)
def train():
    batches = iter(loader)
    while state.step < STEPS:
        diary.moment("step")
        try:
            ids, rows, kinds = next(batches)
        except StopIteration:
            diary.moment("epoch")
            batches = iter(loader)
            ids, rows, kinds = next(batches)
        optimizer.zero_grad()
        loss = cross_entropy(model(rows), kinds)
        diary.saw(state.step, loss, ids)
        loss.backward()
        optimizer.step()
        diary.moment("stepped")
        state.commit()
        diary.moment("committed")


train()
diary.moment("after")
diary.finish(model, optimizer, step=state.step)
diary.leave()
