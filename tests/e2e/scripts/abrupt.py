"""A resilient training whose rank 0 ends while a thread of gloo waits for the interpreter, to free a tensor."""

import mmap
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.e2e.scripts.points import FOLDER, PLAN, rank

HOLD_S = 0.2
"""By then the thread of gloo, whose transfer is over, waits for the interpreter. There is no event for that."""


def shared_bytes() -> mmap.mmap:
    """Return one byte for each rank. They are read and written without releasing the interpreter."""
    descriptor = os.open(FOLDER / "turns", os.O_RDWR | os.O_CREAT)
    os.ftruncate(descriptor, 2)
    return mmap.mmap(descriptor, 2)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(2, 2))
    state = taskd.TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))

    @taskd.resilient(state)
    def train() -> None:
        while state.step < PLAN["steps"]:
            model(torch.ones(1, 2)).sum().backward()
            state.optimizer.step()
            state.commit()

    train()
    turns = shared_bytes()
    if rank() == 1:
        while not turns[0]:
            time.sleep(0.01)
        dist.all_reduce(torch.ones(1))
        turns[1] = 1
        return
    dist.all_reduce(torch.ones(1), async_op=True)
    sys.setswitchinterval(1000)
    turns[0] = 1  # this thread has the interpreter to itself from here on
    while not turns[1]:
        pass
    end_s = time.monotonic() + HOLD_S
    while time.monotonic() < end_s:
        pass


main()
sys.exit(PLAN["status"])
