"""timm's train.py: Lookahead around AdamW, mixup with a share for each batch, smoothing that falls
from epoch to epoch.
"""

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import taskd
from tests.scripts import diary
from tests.scripts.models import KINDS, Rows, network

EPOCHS, SMOOTHING = 4, 0.2


class Lookahead(torch.optim.Optimizer):
    """The weights of every k-th step go halfway to those of the inner optimizer."""

    def __init__(self, inner, alpha=0.5, k=5):
        super().__init__(inner.param_groups, {"lookahead_alpha": alpha, "lookahead_k": k, "lookahead_step": 0})
        self.inner = inner
        self._follow()

    def _follow(self):
        self.state, self.param_groups = self.inner.state, self.inner.param_groups

    @torch.no_grad()
    def step(self, closure=None):
        loss = self.inner.step(closure)
        for group in self.param_groups:
            group["lookahead_step"] += 1
            if group["lookahead_step"] % group["lookahead_k"]:
                continue
            for fast in group["params"]:
                if fast.grad is None:
                    continue
                kept = self.state[fast]
                if "slow" not in kept:
                    kept["slow"] = fast.detach().clone()
                kept["slow"].add_(fast - kept["slow"], alpha=group["lookahead_alpha"])
                fast.copy_(kept["slow"])
        return loss

    def zero_grad(self, set_to_none=True):
        self.inner.zero_grad(set_to_none)

    def state_dict(self):
        return self.inner.state_dict()

    def load_state_dict(self, state_dict):
        self.inner.load_state_dict(state_dict)
        self._follow()


dist.init_process_group("gloo")
diary.moment("setup")
rank = dist.get_rank()
torch.manual_seed(42 + rank)
model = DistributedDataParallel(network())
optimizer = Lookahead(torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.05))
data = Rows()
sampler: DistributedSampler = DistributedSampler(data, shuffle=True, seed=3)
loader = DataLoader(data, batch_size=4, sampler=sampler)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS * len(loader), eta_min=1e-4)
state = taskd.TrainState(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader, sampler=sampler, seed=1)
diary.moment("setup done")


def mixed(rows, kinds, step, smoothing):
    share = float(np.random.default_rng((7, step, rank)).beta(0.8, 0.8))
    off, on = smoothing / KINDS, 1 - smoothing + smoothing / KINDS
    targets = torch.full((len(kinds), KINDS), off).scatter_(1, kinds[:, None], on)
    return share * rows + (1 - share) * rows.flip(0), share * targets + (1 - share) * targets.flip(0)


@taskd.resilient(state)
def train():
    for epoch in state.epochs(EPOCHS):
        sampler.set_epoch(epoch)
        smoothing = SMOOTHING * (1 - epoch / EPOCHS)
        for ids, rows, kinds in loader:
            diary.moment("step")
            rows, targets = mixed(rows, kinds, state.step, smoothing)
            loss = torch.sum(-targets * F.log_softmax(model(rows), dim=-1), dim=-1).mean()
            diary.saw(state.step, loss, ids)
            optimizer.zero_grad()
            loss.backward()
            diary.moment("backward")
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            diary.moment("stepped")
            scheduler.step()
            state.commit()
            diary.moment("committed")
        diary.moment("epoch done")


train()
diary.moment("after")
diary.finish(model, optimizer, scheduler, step=state.step)
diary.leave()
