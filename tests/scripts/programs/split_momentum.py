"""An optimizer that splits its work: each rank has the momentum of every other parameter, all share the updates."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.scripts import diary
from tests.scripts.models import batch_of, network

STEPS = 40


class SplitMomentum(torch.optim.Optimizer):
    """Parameter i belongs to rank i % world, which alone has its momentum and computes its update."""

    def __init__(self, parameters, lr=0.05, momentum=0.9):
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        world, rank = dist.get_world_size(), dist.get_rank()
        for group in self.param_groups:
            parameters = group["params"]
            for first in range(0, len(parameters), world):
                some = parameters[first : first + world]
                if rank < len(some):
                    own = some[rank]
                    held = self.state[own]
                    if "momentum" not in held:
                        held["momentum"] = torch.zeros_like(own)
                    held["momentum"].mul_(group["momentum"]).add_(own.grad)
                for owner, parameter in enumerate(some):
                    update = self.state[parameter]["momentum"] if owner == rank else torch.empty_like(parameter)
                    dist.broadcast(update, owner)
                    parameter.add_(update / (update.norm() + 1e-6), alpha=-group["lr"])


dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
model = DistributedDataParallel(network())
optimizer = SplitMomentum(model.parameters())
state = taskd.TrainState(model=model, optimizer=optimizer, seed=1)
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
        optimizer.step()
        diary.moment("stepped")
        state.commit()
        diary.moment("committed")


train()
diary.moment("after")
diary.finish(model, optimizer, step=state.step)
diary.leave()
