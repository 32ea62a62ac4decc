"""Rank 0 evaluates alone for seconds, in train mode, while its peers wait."""

import time

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


def evaluate(seconds):
    """The loss over and over; its weights are one set alone."""
    end = time.monotonic() + seconds
    with torch.no_grad():
        _, rows, kinds = batch_of(0, 0, 1, size=64)
        while time.monotonic() < end:
            loss = cross_entropy(model.module[3](model.module[1](model.module[0](rows))), kinds)
    return loss


@taskd.resilient(state)
def train():
    for step in range(state.step, STEPS):
        diary.moment("step")
        ids, rows, kinds = batch_of(step, dist.get_rank(), dist.get_world_size())
        optimizer.zero_grad()
        loss = cross_entropy(model(rows), kinds)
        diary.saw(step, loss, ids)
        loss.backward()
        diary.moment("backward")
        optimizer.step()
        diary.moment("stepped")
        state.commit()
        diary.moment("committed")
        if state.step % 20 == 0:
            if dist.get_rank() == 0:
                diary.moment("evaluation")
                diary.saw(f"evaluation {state.step}", evaluate(7))
            dist.barrier()
            diary.moment("evaluated")


train()
diary.moment("after")
diary.finish(model, optimizer, step=state.step)
diary.leave()
