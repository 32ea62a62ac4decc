"""Two tasks, and dynamic weight averaging between their losses: the weights are plain floats that follow the losses."""

import math

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.scripts import diary
from tests.scripts.models import KINDS, WIDTH, batch_of

STEPS = 45
TEMPERATURE = 2.0


class TwoTasks(nn.Module):
    """One trunk; a head tells the kind, the other one makes the row again."""

    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(WIDTH, 24), nn.ReLU(), nn.Dropout(0.2))
        self.to_kind = nn.Linear(24, KINDS)
        self.to_row = nn.Linear(24, WIDTH)

    def forward(self, rows):
        features = self.trunk(rows)
        return self.to_kind(features), self.to_row(features)


dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
model = DistributedDataParallel(TwoTasks())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=15, gamma=0.5)
loss_weights = {"kind": 1.0, "row": 1.0}
history: list[tuple[float, float]] = []
state = taskd.TrainState(model=model, optimizer=optimizer, scheduler=scheduler, seed=1)
diary.moment("setup done")


def update_weights(of_kind, of_row):
    means = torch.stack([of_kind.detach(), of_row.detach()])
    dist.all_reduce(means)
    history.append(tuple((means / dist.get_world_size()).tolist()))
    if len(history) < 2:
        return
    speeds = [math.exp(new / old / TEMPERATURE) for new, old in zip(history[-1], history[-2], strict=True)]
    for name, speed in zip(loss_weights, speeds, strict=True):
        loss_weights[name] = 0.8 * loss_weights[name] + 0.2 * len(speeds) * speed / sum(speeds)


@taskd.resilient(state)
def train():
    for step in range(state.step, STEPS):
        diary.moment("step")
        ids, rows, kinds = batch_of(step, dist.get_rank(), dist.get_world_size())
        scores, made = model(rows)
        of_kind, of_row = cross_entropy(scores, kinds), mse_loss(made, rows)
        loss = loss_weights["kind"] * of_kind + loss_weights["row"] * of_row
        diary.saw(step, loss, loss_weights["kind"], loss_weights["row"], ids)
        optimizer.zero_grad()
        loss.backward()
        diary.moment("backward")
        optimizer.step()
        scheduler.step()
        diary.moment("stepped")
        update_weights(of_kind, of_row)
        diary.moment("weighted")
        state.commit()
        diary.moment("committed")


train()
diary.moment("after")
diary.finish(model, optimizer, scheduler, step=state.step, weights=list(loss_weights.values()))
diary.leave()
