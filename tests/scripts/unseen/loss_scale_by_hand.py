"""apex's way, by hand: gradients in half precision, a scale of the loss that doubles and halves, steps left out."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import taskd
from tests.scripts import diary
from tests.scripts.models import Rows, network

EPOCHS = 4


class DynamicLossScaler:
    def __init__(self, init_scale=2.0**13, factor=2.0, window=5):
        self.cur_scale, self.factor, self.window = init_scale, factor, window
        self.cur_iter, self.last_overflow = 0, -1

    def scale(self, loss):
        return loss * self.cur_scale

    def has_overflow(self, parameters):
        return any(not torch.isfinite(p.grad.half()).all() for p in parameters if p.grad is not None)

    @torch.no_grad()
    def unscale(self, parameters):
        for p in parameters:
            p.grad = p.grad.half().float() / self.cur_scale

    def update(self, overflow):
        if overflow:
            self.cur_scale = max(self.cur_scale / self.factor, 1.0)
            self.last_overflow = self.cur_iter
        elif (self.cur_iter - self.last_overflow) % self.window == 0:
            self.cur_scale *= self.factor
        self.cur_iter += 1


dist.init_process_group("gloo")
diary.moment("setup")
torch.manual_seed(0)
model = DistributedDataParallel(network())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
data = Rows()
sampler: DistributedSampler = DistributedSampler(data, shuffle=True, seed=3)
loader = DataLoader(data, batch_size=4, sampler=sampler)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS * len(loader))
scaler = DynamicLossScaler()
state = taskd.TrainState(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader, sampler=sampler, seed=1)
diary.moment("setup done")


@taskd.resilient(state)
def train():
    for epoch in state.epochs(EPOCHS):
        sampler.set_epoch(epoch)
        for ids, rows, kinds in loader:
            diary.moment("step")
            optimizer.zero_grad()
            loss = cross_entropy(model(rows), kinds)
            diary.saw(state.step, loss, ids, scaler.cur_scale)
            scaler.scale(loss).backward()
            diary.moment("backward")
            overflow = scaler.has_overflow(model.parameters())
            if not overflow:
                scaler.unscale(model.parameters())
                optimizer.step()
            scaler.update(overflow)
            diary.moment("stepped")
            scheduler.step()
            state.commit()
            diary.moment("committed")
        diary.moment("epoch done")


train()
diary.moment("after")
diary.finish(model, optimizer, scheduler, step=state.step)
diary.leave()
