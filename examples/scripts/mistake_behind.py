"""Digits, data parallel, with a mistake: the weights are bounded after the commit.

taskd run --rehearse examples/scripts/mistake_behind.py
"""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import taskd

STEPS = 60


def bound(network):
    """Limit every weight to -0.1..0.1."""
    with torch.no_grad():
        for weight in network.parameters():
            weight.clamp_(-0.1, 0.1)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    pixels, digits = load_digits(return_X_y=True)
    images, labels = torch.as_tensor(pixels, dtype=torch.float32) / 16, torch.as_tensor(digits)
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
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
            state.commit(loss)
            bound(network)

    train()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
