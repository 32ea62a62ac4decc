"""The README's loop: the batch of a step is a function of step and share."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.scripts import diary
from tests.scripts.models import batch_of, network

dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
model = DistributedDataParallel(network())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40)
state = taskd.TrainState(model=model, optimizer=optimizer, scheduler=scheduler, seed=1)
diary.moment("setup done")


@taskd.resilient(state)
def train():
    for step in range(state.step, 40):
        diary.moment("step")
        optimizer.zero_grad()
        for share in state.shares():
            ids, rows, kinds = batch_of(step, share.index, share.count)
            loss = cross_entropy(model(rows), kinds)
            diary.saw(step, loss, ids)
            (loss * share.scale).backward()
        diary.moment("backward")
        optimizer.step()
        diary.moment("stepped")
        scheduler.step()
        state.commit()
        diary.moment("committed")


train()
diary.moment("after")
diary.finish(model, optimizer, scheduler, step=state.step)
diary.leave()
