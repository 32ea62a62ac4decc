"""all_gather_object and a MIN-reduced number of steps in the set-up: ranks hold other numbers of rows."""

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
mine = 200 - 40 * dist.get_rank()
held: list = [None] * dist.get_world_size()
dist.all_gather_object(held, mine)
steps = torch.tensor(mine // 4)
dist.all_reduce(steps, op=dist.ReduceOp.MIN)
model = DistributedDataParallel(network())
optimizer = torch.optim.SGD(model.parameters(), lr=10 / sum(held))
state = taskd.TrainState(model=model, optimizer=optimizer, seed=1)
diary.moment("setup done")


@taskd.resilient(state)
def train():
    for step in range(state.step, int(steps)):
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


train()
diary.moment("after")
diary.finish(model, optimizer, step=state.step, held=held, steps=int(steps))
diary.leave()
