"""Digits, data parallel: rank 0 writes a checkpoint once per epoch, and the next start resumes from it.

taskd run --nproc-per-node 2 examples/scripts/checkpoints.py
"""

from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import taskd

EPOCHS = 4
SNAPSHOT = Path("checkpoints/snapshot.pt")


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    pixels, digits = load_digits(return_X_y=True)
    dataset = TensorDataset(torch.as_tensor(pixels, dtype=torch.float32) / 16, torch.as_tensor(digits))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=64, sampler=sampler, drop_last=True)
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=EPOCHS * len(loader))
    state = taskd.TrainState(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader, seed=3)
    if SNAPSHOT.exists():
        saved = torch.load(SNAPSHOT)
        network.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
        state.step, state.epoch = saved["step"], saved["epoch"]

    def save(step):
        if dist.get_rank() == 0:
            SNAPSHOT.parent.mkdir(exist_ok=True)
            parts = {"model": network, "optimizer": optimizer, "scheduler": scheduler}
            whole = {name: part.state_dict() for name, part in parts.items()}
            new = SNAPSHOT.with_suffix(".new")
            torch.save({**whole, "step": step, "epoch": step // len(loader)}, new)
            new.rename(SNAPSHOT)
            print(f"step {step}: {SNAPSHOT}", flush=True)
        dist.barrier()

    state.after_commit(save, every=len(loader))

    @taskd.resilient(state)
    def train():
        for epoch in state.epochs(EPOCHS):
            sampler.set_epoch(epoch)
            for images, labels in loader:
                optimizer.zero_grad()
                loss = cross_entropy(model(images), labels)
                loss.backward()
                optimizer.step()
                scheduler.step()
                state.commit(loss)

    train()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
