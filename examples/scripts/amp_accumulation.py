"""Digits, data parallel: autocast, a GradScaler, and four micro-batches to a step.

taskd run --nproc-per-node 2 examples/scripts/amp_accumulation.py
"""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import taskd

STEPS = 60
MICRO_BATCHES = 4


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    pixels, digits = load_digits(return_X_y=True)
    images, labels = torch.as_tensor(pixels, dtype=torch.float32) / 16, torch.as_tensor(digits)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Dropout(0.2), nn.Linear(96, 10)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=10)
    state = taskd.TrainState(model=model, optimizer=optimizer, scaler=scaler, seed=1)

    def batch(step, share, shares):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(step))
        return order[share * 32 : (share + 1) * 32]

    @taskd.resilient(state)
    def train():
        model.train()
        while state.step < STEPS:
            optimizer.zero_grad()
            chosen = batch(state.step, dist.get_rank(), dist.get_world_size())
            for number, rows in enumerate(chosen.chunk(MICRO_BATCHES)):
                with (
                    model.no_sync() if number < MICRO_BATCHES - 1 else nullcontext(),
                    torch.autocast("cpu", dtype=torch.bfloat16),
                ):
                    loss = cross_entropy(model(images[rows]), labels[rows]) / MICRO_BATCHES
                    scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            if dist.get_rank() == 0 and (state.step + 1) % 10 == 0:
                print(f"step {state.step + 1} loss {loss.item():.4f} scale {scaler.get_scale():.0f}", flush=True)
            state.commit(loss)

    train()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
