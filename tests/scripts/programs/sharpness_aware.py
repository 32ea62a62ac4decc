"""An optimizer around another one, with its parameter groups: up the slope first, then the inner one's step."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.scripts import diary
from tests.scripts.models import batch_of, network

STEPS = 40


class SharpnessAware(torch.optim.Optimizer):
    """Half a step up the gradient, then the base optimizer's step with the gradient found there."""

    def __init__(self, parameters, base, radius=0.05, **options):
        super().__init__(parameters, {"radius": radius, **options})
        self.base = base(self.param_groups, **options)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def climb(self):
        for group in self.param_groups:
            norm = torch.stack([parameter.grad.norm() for parameter in group["params"]]).norm()
            for parameter in group["params"]:
                self.state[parameter]["before"] = parameter.clone()
                parameter.add_(parameter.grad, alpha=group["radius"] / (norm.item() + 1e-12))

    @torch.no_grad()
    def descend(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.copy_(self.state[parameter]["before"])
        self.base.step()

    def step(self, closure=None):
        raise NotImplementedError("call climb, then descend")


dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
model = DistributedDataParallel(network(dropout=0))
optimizer = SharpnessAware(model.parameters(), torch.optim.SGD, lr=0.05, momentum=0.9)
state = taskd.TrainState(model=model, optimizer=optimizer, seed=1)
diary.moment("setup done")


@taskd.resilient(state)
def train():
    for step in range(state.step, STEPS):
        diary.moment("step")
        ids, rows, kinds = batch_of(step, dist.get_rank(), dist.get_world_size())
        loss = cross_entropy(model(rows), kinds)
        diary.saw(step, loss, ids)
        loss.backward()
        optimizer.climb()
        optimizer.zero_grad()
        diary.moment("climbed")
        cross_entropy(model(rows), kinds).backward()
        diary.moment("backward")
        optimizer.descend()
        optimizer.zero_grad()
        diary.moment("stepped")
        state.commit()
        diary.moment("committed")


train()
diary.moment("after")
diary.finish(model, optimizer, step=state.step)
diary.leave()
