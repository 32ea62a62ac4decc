"""LBFGS: the optimizer calls a closure, several times a step."""

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
model = DistributedDataParallel(network(0.0))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4, history_size=5)
state = taskd.TrainState(model=model, optimizer=optimizer, seed=1)
diary.moment("setup done")


@taskd.resilient(state)
def train():
    for step in range(state.step, STEPS):
        ids, rows, kinds = batch_of(step, dist.get_rank(), dist.get_world_size())

        def closure(step=step, ids=ids, rows=rows, kinds=kinds):
            diary.moment("closure")
            optimizer.zero_grad()
            loss = cross_entropy(model(rows), kinds)
            loss.backward()
            mean = dist_mean(loss.detach())
            diary.saw(step, mean, ids)
            return mean

        optimizer.step(closure)
        diary.moment("stepped")
        state.commit()
        diary.moment("committed")


def dist_mean(value):
    """Of all ranks: all must search along the same line."""
    dist.all_reduce(value)
    return value / dist.get_world_size()


train()
diary.moment("after")
diary.finish(model, optimizer, step=state.step)
diary.leave()
