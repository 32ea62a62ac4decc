"""YOLO's trainer: an average of the weights whose decay ramps up, three warm-up ramps, the average is what is kept."""

import copy
import math

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import taskd
from tests.scripts import diary
from tests.scripts.models import Rows, network

EPOCHS, LR0, LRF, MOMENTUM = 4, 0.05, 0.1, 0.9


class ModelEMA:
    def __init__(self, model, decay=0.999, tau=20, updates=0):
        self.ema = copy.deepcopy(model).eval()
        self.updates = updates
        self.decay = lambda x: decay * (1 - math.exp(-x / tau))
        for p in self.ema.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        self.updates += 1
        d = self.decay(self.updates)
        followed = model.state_dict()
        for name, value in self.ema.state_dict().items():
            if value.dtype.is_floating_point:
                value.mul_(d).add_((1 - d) * followed[name].detach())


class Trainer:
    def __init__(self):
        torch.manual_seed(0)
        self.model = DistributedDataParallel(network())
        weights = [p for p in self.model.parameters() if p.dim() > 1]
        biases = [p for p in self.model.parameters() if p.dim() == 1]
        self.optimizer = torch.optim.SGD(biases, lr=LR0, momentum=MOMENTUM, nesterov=True)
        self.optimizer.add_param_group({"params": weights, "weight_decay": 5e-4})
        self.lf = lambda x: (1 - x / EPOCHS) * (1.0 - LRF) + LRF
        data = Rows()
        self.sampler = DistributedSampler(data, shuffle=True, seed=3)
        self.loader = DataLoader(data, batch_size=4, sampler=self.sampler)
        self.ema = ModelEMA(self.model.module)
        self.state = taskd.TrainState(
            model=self.model,
            optimizer=self.optimizer,
            ema=self.ema.ema,
            loader=self.loader,
            sampler=self.sampler,
            seed=1,
        )

    def warmup(self, ni, epoch):
        ramp = [0, len(self.loader)]
        for j, group in enumerate(self.optimizer.param_groups):
            top = LR0 * self.lf(epoch)
            group["lr"] = float(np.interp(ni, ramp, [0.2 if j == 0 else 0.0, top]))
            group["momentum"] = float(np.interp(ni, ramp, [0.8, MOMENTUM]))

    def optimizer_step(self):
        nn.utils.clip_grad_norm_(self.model.parameters(), max_norm=10.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.ema.update(self.model.module)

    def fit(self):
        for epoch in self.state.epochs(EPOCHS):
            self.sampler.set_epoch(epoch)
            self.model.train()
            self.optimizer.zero_grad()
            for ids, rows, kinds in self.loader:
                diary.moment("step")
                self.warmup(self.state.step, epoch)
                loss = cross_entropy(self.model(rows), kinds)
                diary.saw(self.state.step, loss, ids)
                loss.backward()
                diary.moment("backward")
                self.optimizer_step()
                diary.moment("stepped")
                self.state.commit()
                diary.moment("committed")
            diary.moment("epoch done")


dist.init_process_group("gloo")
diary.moment("setup")
trainer = Trainer()
diary.moment("setup done")


@taskd.resilient(trainer.state)
def train():
    trainer.fit()


train()
diary.moment("after")
diary.finish(trainer.model, trainer.optimizer, trainer.ema.ema, step=trainer.state.step)
diary.leave()
