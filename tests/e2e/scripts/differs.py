"""A training whose newcomers begin with another collective than the survivors, as a library may in its set-up."""

import json
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.e2e.scripts.points import PLAN, note, rank, reach


class Entries:
    """Number of this process's entries into the training."""

    count = 0


def meet() -> None:
    """Call a collective: the same one on all ranks as long as all processes are new."""
    Entries.count += 1
    if os.environ.get("TASKD_JOINS") == "on":
        dist.all_reduce(torch.ones(8))
    elif Entries.count > 1:
        dist.broadcast(torch.ones(8), 0)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    network = nn.Linear(4, 2)
    model = DistributedDataParallel(network)
    state = taskd.TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))

    @taskd.resilient(state)
    def train() -> None:
        meet()
        while state.step < PLAN["steps"]:
            reach(state.step + 1, "begin")
            state.optimizer.zero_grad()
            model(torch.ones(3, 4)).square().mean().backward()
            state.optimizer.step()
            state.commit()
        dist.barrier()

    train()
    note(f"result-{rank()}", json.dumps(float(network.weight.detach().double().sum())))


main()
