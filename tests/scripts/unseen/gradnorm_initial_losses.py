"""GradNorm: the weights of three tasks are trained so that their gradients keep pace with how far each
loss has fallen.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import taskd
from tests.scripts import diary
from tests.scripts.models import KINDS, WIDTH, Rows

EPOCHS, ALPHA = 4, 1.5


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(WIDTH, 24), nn.ReLU(), nn.Dropout(0.1))
        self.shared = nn.Linear(24, 16)
        self.kind, self.total, self.again = nn.Linear(16, KINDS), nn.Linear(16, 1), nn.Linear(16, WIDTH)

    def forward(self, rows):
        inner = torch.relu(self.shared(self.trunk(rows)))
        return self.kind(inner), self.total(inner).squeeze(1), self.again(inner)


class TaskWeights(nn.Module):
    def __init__(self, tasks):
        super().__init__()
        self.values = nn.Parameter(torch.ones(tasks))

    @torch.no_grad()
    def renormalise(self):
        self.values.clamp_(min=0.05)
        self.values.mul_(len(self.values) / self.values.sum())


class GradNorm:
    """Sets the gradient of the weights, from the norms of what each task asks of the shared layer."""

    def __init__(self, weights, layer):
        self.weights, self.layer = weights, layer
        self.initial_losses = None

    def __call__(self, losses):
        asked = [torch.autograd.grad(loss, self.layer.weight, retain_graph=True)[0].norm() for loss in losses]
        told = torch.stack([torch.stack(asked), losses.detach()])
        dist.all_reduce(told)
        norms, means = told / dist.get_world_size()
        if self.initial_losses is None:
            self.initial_losses = means.clone()
        pace = means / self.initial_losses
        pace = pace / pace.mean()
        weighted = self.weights.values.detach() * norms
        aims = weighted.mean() * pace**ALPHA
        self.weights.values.grad = torch.sign(weighted - aims) * norms


dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
model, weights = DistributedDataParallel(MultiTask()), TaskWeights(3)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
of_weights = torch.optim.Adam(weights.parameters(), lr=2e-2)
gradnorm = GradNorm(weights, model.module.shared)
data = Rows()
sampler: DistributedSampler = DistributedSampler(data, shuffle=True, seed=3)
loader = DataLoader(data, batch_size=4, sampler=sampler)
state = taskd.TrainState(
    model=model,
    weights=weights,
    optimizer=optimizer,
    of_weights=of_weights,
    loader=loader,
    sampler=sampler,
    seed=1,
)
diary.moment("setup done")


@taskd.resilient(state)
def train():
    for epoch in state.epochs(EPOCHS):
        sampler.set_epoch(epoch)
        for ids, rows, kinds in loader:
            diary.moment("step")
            scores, total, again = model(rows)
            losses = torch.stack(
                [cross_entropy(scores, kinds), mse_loss(total, rows.sum(dim=1) / 4), mse_loss(again, rows)]
            )
            diary.saw(state.step, losses, ids, weights.values)
            optimizer.zero_grad()
            gradnorm(losses)
            (weights.values.detach() * losses).sum().backward()
            diary.moment("backward")
            optimizer.step()
            of_weights.step()
            weights.renormalise()
            diary.moment("stepped")
            state.commit()
            diary.moment("committed")
        diary.moment("epoch done")


train()
diary.moment("after")
diary.finish(model, optimizer, weights, of_weights, step=state.step)
diary.leave()
