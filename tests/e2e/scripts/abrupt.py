"""A resilient training whose rank 0 ends while a thread of gloo waits for the interpreter, to free a tensor."""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.e2e.scripts.points import PLAN, rank


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
    if rank() == 1:
        time.sleep(0.2)  # rank 0 has the interpreter to itself by then
        dist.all_reduce(torch.ones(1))
        return
    dist.all_reduce(torch.ones(1), async_op=True)
    sys.setswitchinterval(1000)
    end_s = time.monotonic() + 0.6
    while time.monotonic() < end_s:
        pass


main()
sys.exit(PLAN["status"])
