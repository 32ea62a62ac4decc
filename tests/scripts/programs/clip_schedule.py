"""Clipping, a warm-up and a cosine, on three ranks."""

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
warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5)
cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=35)
scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cosine], milestones=[5])
state = taskd.TrainState(model=model, optimizer=optimizer, scheduler=scheduler, seed=1)
diary.moment("setup done")


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
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        diary.moment("stepped")
        scheduler.step()
        state.commit()
        diary.moment("committed")


train()
diary.moment("after")
diary.finish(model, optimizer, scheduler, step=state.step)
diary.leave()
