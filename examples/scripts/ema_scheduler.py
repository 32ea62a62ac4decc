"""Digits, data parallel: the script's own average of the weights (EMA), and a cosine schedule.

taskd run --nproc-per-node 2 examples/scripts/ema_scheduler.py
"""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import taskd

STEPS = 60


class EMA:
    """Moving average of a model's weights."""

    def __init__(self, model, decay=0.95):
        self.decay = decay
        self.shadow = {name: value.detach().clone() for name, value in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model):
        for name, value in model.state_dict().items():
            self.shadow[name].mul_(self.decay).add_(value, alpha=1 - self.decay)

    def state_dict(self):
        return self.shadow

    def load_state_dict(self, saved):
        for name, value in saved.items():
            self.shadow[name].copy_(value)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    pixels, digits = load_digits(return_X_y=True)
    images, labels = torch.as_tensor(pixels, dtype=torch.float32) / 16, torch.as_tensor(digits)
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)
    ema = EMA(network)
    state = taskd.TrainState(model=model, optimizer=optimizer, scheduler=scheduler, replicated={"ema": ema}, seed=1)

    @taskd.resilient(state)
    def train():
        for step in range(state.step, STEPS):
            order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(step))
            chosen = order[dist.get_rank() * 32 :][:32]
            optimizer.zero_grad()
            loss = cross_entropy(model(images[chosen]), labels[chosen])
            loss.backward()
            optimizer.step()
            ema.update(network)
            scheduler.step()
            if dist.get_rank() == 0 and (step + 1) % 10 == 0:
                print(f"step {step + 1} loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.6f}", flush=True)
            state.commit(loss)

    train()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
