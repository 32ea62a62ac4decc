"""A graceful stop: a handler sets a flag, the ranks all-reduce it, rank 0 saves, and the script comes to its end."""

import os
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.e2e.scripts.points import FOLDER, PLAN, note, rank

told: list[int] = []


def main() -> None:
    for number in PLAN["signals"]:
        signal.signal(number, lambda found, _frame: told.append(found))
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(2, 2))
    state = taskd.TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))

    @taskd.resilient(state)
    def train() -> None:
        while True:
            model(torch.ones(1, 2)).sum().backward()
            state.optimizer.step()
            state.commit()
            if state.step == 5 and rank() == 0:
                os.kill(os.getppid(), PLAN["signals"][0])
            stop = torch.tensor(len(told))
            dist.all_reduce(stop, op=dist.ReduceOp.MAX)
            if stop.item():
                if rank() == 0:
                    torch.save(model.state_dict(), FOLDER / "model.pt")
                return

    train()
    note(f"behind-{rank()}", f"{state.step}")
    sys.exit(0)


main()
