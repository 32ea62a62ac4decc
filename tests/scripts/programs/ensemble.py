"""An ensemble: each rank trains a member of its own, and only the losses are averaged over all."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

import taskd
from tests.scripts import diary
from tests.scripts.models import batch_of, network

STEPS = 40

dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(100 + dist.get_rank())
model = network()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
state = taskd.TrainState(model=model, optimizer=optimizer, seed=1)
diary.moment("setup done")


@taskd.resilient(state)
def train():
    for step in range(state.step, STEPS):
        diary.moment("step")
        ids, rows, kinds = batch_of(step, 0, 1)
        optimizer.zero_grad()
        loss = cross_entropy(model(rows), kinds)
        loss.backward()
        diary.moment("backward")
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        diary.saw(step, loss, ids, mean)
        optimizer.step()
        state.commit()
        diary.moment("committed")


train()
diary.moment("after")
diary.finish(model, optimizer, step=state.step)
diary.leave()
