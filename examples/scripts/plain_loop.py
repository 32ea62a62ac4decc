"""Digits, data parallel: a DataLoader with a DistributedSampler, epoch by epoch.

taskd run --nproc-per-node 2 examples/scripts/plain_loop.py
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


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    pixels, digits = load_digits(return_X_y=True)
    dataset = TensorDataset(torch.as_tensor(pixels, dtype=torch.float32) / 16, torch.as_tensor(digits))
    sampler = DistributedSampler(dataset, seed=1)
    loader = DataLoader(dataset, batch_size=48, sampler=sampler, drop_last=True)
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    state = taskd.TrainState(model=model, optimizer=optimizer, loader=loader, seed=1)

    @taskd.resilient(state)
    def train():
        for epoch in state.epochs(EPOCHS):
            sampler.set_epoch(epoch)
            for images, labels in loader:
                optimizer.zero_grad()
                loss = cross_entropy(model(images), labels)
                loss.backward()
                optimizer.step()
                if dist.get_rank() == 0 and (state.step + 1) % 5 == 0:
                    print(f"epoch {epoch} step {state.step + 1} loss {loss.item():.4f}", flush=True)
                state.commit(loss)

    train()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
