"""A small training by the SDK, with data, a wrapper and a group of its own; rank 0 prints the weights' digest.

argv: for each fault, rank:step:folder; that rank kills itself there, once for each folder.
"""

import hashlib
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import taskd

STEPS_PER_EPOCH, EPOCHS = 6, 2


def main() -> None:
    """Train, and print the digest."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(3)
    side = dist.new_group(list(range(dist.get_world_size())))
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data = TensorDataset(torch.randn(24 * dist.get_world_size(), 8), torch.randn(24 * dist.get_world_size(), 1))
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data, seed=5)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    state = taskd.TrainState(model=model, optimizer=optimizer, loader=loader)

    @taskd.resilient(state)
    def train() -> None:
        for epoch in state.epochs(EPOCHS):
            sampler.set_epoch(epoch)
            for x, y in loader:
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(model(x), y).backward()
                mean = torch.ones(1)
                dist.all_reduce(mean, group=side)
                optimizer.step()
                state.commit()
                _die_at(rank, state.step)

    train()
    if rank == 0:
        flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        print("digest", hashlib.sha256(flat.numpy().tobytes()).hexdigest(), flush=True)
    dist.destroy_process_group()


def _die_at(rank: int, step: int) -> None:
    for number, fault in enumerate(sys.argv[1:]):
        whose, when, folder = fault.split(":")
        mark = Path(folder) / f"died-{number}"
        if (rank, step) == (int(whose), int(when)) and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
