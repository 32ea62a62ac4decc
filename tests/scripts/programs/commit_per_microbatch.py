"""A commit after each of four micro-batches, as a loop over batches suggests: gradients are pending."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.scripts import diary
from tests.scripts.models import batch_of, network

STEPS = 40

dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
state = taskd.TrainState(model=model, optimizer=optimizer, seed=1)
diary.moment("setup done")


@taskd.resilient(state)
def train():
    for step in range(state.step, STEPS):
        diary.moment("step")
        last = step % 4 == 3
        ids, rows, kinds = batch_of(step, dist.get_rank(), dist.get_world_size())
        with nullcontext() if last else model.no_sync():
            loss = cross_entropy(model(rows), kinds) / 4
            diary.saw(step, loss, ids)
            loss.backward()
        diary.moment("backward")
        if last:
            optimizer.step()
            diary.moment("stepped")
            optimizer.zero_grad()
        state.commit()
        diary.moment("committed")


train()
diary.moment("after")
diary.finish(model, optimizer, step=state.step)
diary.leave()
