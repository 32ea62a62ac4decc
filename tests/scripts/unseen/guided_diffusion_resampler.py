"""guided-diffusion's loop: timesteps are drawn by the losses that they had of late, and two averages of the weights."""

import copy

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.scripts import diary
from tests.scripts.models import WIDTH, batch_of

STEPS, TIMES, BATCH = 48, 8, 6
EMA_RATES = (0.9, 0.98)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(TIMES, 16)
        self.into, self.out = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)

    def forward(self, noised, times):
        return self.out(torch.nn.functional.silu(self.into(noised) + self.time(times)))


class LossSecondMomentResampler:
    def __init__(self, history_per_term=3, uniform_prob=0.01):
        self.history_per_term, self.uniform_prob = history_per_term, uniform_prob
        self._loss_history = np.zeros([TIMES, history_per_term], dtype=np.float64)
        self._loss_counts = np.zeros([TIMES], dtype=int)

    def weights(self):
        if not (self._loss_counts == self.history_per_term).all():
            return np.ones([TIMES])
        weights = np.sqrt(np.mean(self._loss_history**2, axis=-1))
        weights /= weights.sum()
        return weights * (1 - self.uniform_prob) + self.uniform_prob / TIMES

    def sample(self, number):
        weights = self.weights()
        p = weights / weights.sum()
        times = np.random.choice(TIMES, size=number, p=p)
        return torch.from_numpy(times), torch.from_numpy(1 / (TIMES * p[times])).float()

    def update_with_local_losses(self, times, losses):
        told = torch.stack((times.double(), losses.double()))
        parts = [torch.empty_like(told) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, told)
        for t, loss in torch.cat(parts, dim=1).T.tolist():
            t = int(t)
            if self._loss_counts[t] == self.history_per_term:
                self._loss_history[t, :-1] = self._loss_history[t, 1:].copy()
                self._loss_history[t, -1] = loss
            else:
                self._loss_history[t, self._loss_counts[t]] = loss
                self._loss_counts[t] += 1


class TrainLoop:
    def __init__(self, model):
        self.model = model
        self.alphas = torch.linspace(0.98, 0.05, TIMES)
        self.opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
        self.ema_models = {
            f"ema_{int(1000 * rate)}": copy.deepcopy(model.module).requires_grad_(False) for rate in EMA_RATES
        }
        self.schedule_sampler = LossSecondMomentResampler()

    def run_step(self, step, rows, ids):
        self.forward_backward(step, rows, ids)
        self._anneal_lr(step)
        self.opt.step()
        self._update_ema()
        diary.moment("stepped")

    def forward_backward(self, step, rows, ids):
        self.opt.zero_grad()
        times, weights = self.schedule_sampler.sample(len(rows))
        noise = torch.randn_like(rows)
        kept = self.alphas[times][:, None]
        losses = (self.model(kept.sqrt() * rows + (1 - kept).sqrt() * noise, times) - noise).square().mean(dim=1)
        self.schedule_sampler.update_with_local_losses(times, losses.detach())
        loss = (losses * weights).mean()
        diary.saw(step, loss, ids, times)
        loss.backward()
        diary.moment("backward")

    def _anneal_lr(self, step):
        for group in self.opt.param_groups:
            group["lr"] = 1e-2 * (1 - step / STEPS)

    @torch.no_grad()
    def _update_ema(self):
        for rate, ema in zip(EMA_RATES, self.ema_models.values(), strict=True):
            for target, source in zip(ema.parameters(), self.model.parameters(), strict=True):
                target.mul_(rate).add_(source.detach(), alpha=1 - rate)


dist.init_process_group("gloo")
diary.moment("setup")
rank, world = dist.get_rank(), dist.get_world_size()
np.random.seed(30 + rank)
torch.manual_seed(0)
loop = TrainLoop(DistributedDataParallel(Denoiser()))
state = taskd.TrainState(model=loop.model, optimizer=loop.opt, replicated=loop.ema_models, seed=1)
diary.moment("setup done")


@taskd.resilient(state)
def train():
    while state.step < STEPS:
        diary.moment("step")
        ids, rows, _ = batch_of(state.step, rank, world, size=BATCH)
        loop.run_step(state.step, rows, ids)
        state.commit()
        diary.moment("committed")


train()
diary.moment("after")
diary.finish(loop.model, loop.opt, *loop.ema_models.values(), step=state.step)
diary.leave()
