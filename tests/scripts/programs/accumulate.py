"""Gradients of four micro-batches are added up with no_sync, one commit for all of them."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.scripts import diary
from tests.scripts.models import batch_of, network

STEPS = 20

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
        optimizer.zero_grad()
        for part in range(4):
            diary.moment("step")
            ids, rows, kinds = batch_of(4 * step + part, dist.get_rank(), dist.get_world_size())
            with nullcontext() if part == 3 else model.no_sync():
                loss = cross_entropy(model(rows), kinds) / 4
                diary.saw((step, part), loss, ids)
                loss.backward()
            diary.moment("backward")
        optimizer.step()
        diary.moment("stepped")
        state.commit()
        diary.moment("committed")


train()
diary.moment("after")
diary.finish(model, optimizer, step=state.step)
diary.leave()
