"""Digits, data parallel, with a mistake: the average of the weights (EMA) is not given to the state.

taskd run --rehearse examples/scripts/mistake_ema.py
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


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    pixels, digits = load_digits(return_X_y=True)
    images, labels = torch.as_tensor(pixels, dtype=torch.float32) / 16, torch.as_tensor(digits)
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    ema = EMA(network)
    state = taskd.TrainState(model=model, optimizer=optimizer, seed=1)

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
            state.commit(loss)

    train()
    if dist.get_rank() == 0:
        torch.save(ema.shadow, "ema.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
