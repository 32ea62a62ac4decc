"""Stochastic depth, as in timm: the rate is an attribute of each DropPath, made smaller at the start of each epoch."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import taskd
from tests.scripts import diary
from tests.scripts.models import KINDS, WIDTH, Rows

EPOCHS = 4
DECAY = 0.6


class DropPath(nn.Module):
    """Drops a whole branch for some of the rows."""

    def __init__(self, drop_prob):
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, branch):
        if not self.training or self.drop_prob == 0.0:
            return branch
        keep = 1 - self.drop_prob
        mask = (torch.rand(len(branch), 1) < keep).float()
        return branch * mask / keep


class Block(nn.Module):
    """A residual block."""

    def __init__(self, drop_prob):
        super().__init__()
        self.branch = nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 24), nn.GELU())
        self.drop_path = DropPath(drop_prob)

    def forward(self, rows):
        return rows + self.drop_path(self.branch(rows))


def anneal_drop_path(model):
    for module in model.modules():
        if isinstance(module, DropPath):
            module.drop_prob *= DECAY


dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
blocks = [Block(drop_prob) for drop_prob in (0.2, 0.4, 0.6)]
model = DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, 24), *blocks, nn.Linear(24, KINDS)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.05)
data = Rows()
sampler: DistributedSampler = DistributedSampler(data, shuffle=True, seed=3)
loader = DataLoader(data, batch_size=4, sampler=sampler)
state = taskd.TrainState(model=model, optimizer=optimizer, loader=loader, sampler=sampler, seed=1)
diary.moment("setup done")


@taskd.resilient(state)
def train():
    for epoch in state.epochs(EPOCHS):
        sampler.set_epoch(epoch)
        if epoch > 0:
            anneal_drop_path(model)
        diary.moment("annealed")
        for ids, rows, kinds in loader:
            diary.moment("step")
            optimizer.zero_grad()
            loss = cross_entropy(model(rows), kinds)
            diary.saw(state.step, loss, ids, [block.drop_path.drop_prob for block in blocks])
            loss.backward()
            diary.moment("backward")
            optimizer.step()
            diary.moment("stepped")
            state.commit()
            diary.moment("committed")


train()
diary.moment("after")
diary.finish(model, optimizer, step=state.step, drop_probs=[block.drop_path.drop_prob for block in blocks])
diary.leave()
