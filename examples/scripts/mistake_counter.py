"""Digits, data parallel, with a mistake: a counter that is not in the state determines the amount of noise.

taskd run --rehearse examples/scripts/mistake_counter.py
"""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import taskd

EPOCHS = 3


class Progress:
    """Number of samples that this rank has used."""

    def __init__(self):
        self.seen = 0

    def noise(self):
        return 0.2 * max(0.0, 1 - self.seen / 4000)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    pixels, digits = load_digits(return_X_y=True)
    dataset = TensorDataset(torch.as_tensor(pixels, dtype=torch.float32) / 16, torch.as_tensor(digits))
    loader = DataLoader(dataset, batch_size=48, sampler=DistributedSampler(dataset), drop_last=True)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    progress = Progress()
    state = taskd.TrainState(model=model, optimizer=optimizer, loader=loader, seed=1)

    @taskd.resilient(state)
    def train():
        for epoch in state.epochs(EPOCHS):
            loader.sampler.set_epoch(epoch)
            for images, labels in loader:
                noisy = images + progress.noise() * torch.randn_like(images)
                progress.seen += len(images)
                optimizer.zero_grad()
                loss = cross_entropy(model(noisy), labels)
                loss.backward()
                optimizer.step()
                state.commit(loss)

    train()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
