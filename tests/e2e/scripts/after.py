"""A script with work after the training: rank 1 fails there, and rank 0 still works for a long time."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.e2e.scripts.points import PLAN, rank, reach


def main() -> None:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(2, 2))
    state = taskd.TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))

    @taskd.resilient(state)
    def train() -> None:
        while state.step < PLAN["steps"]:
            model(torch.ones(1, 2)).sum().backward()
            state.optimizer.step()
            state.commit()
        dist.barrier()

    train()
    reach("after")
    if rank() == 1:
        sys.stdout.flush()
        os._exit(3)
    print("all ranks are well", flush=True)


main()
