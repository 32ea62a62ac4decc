"""A training that chooses a library's device before it imports it. A process that has imported it before fails."""

import os

os.environ["CHOSEN_DEVICE"] = "cpu"

import json

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.e2e.scripts import chosen
from tests.e2e.scripts.points import PLAN, note, rank, reach


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    network = nn.Linear(4, 2, device=chosen.DEVICE)
    if PLAN.get("spoilt") and os.environ.get("TASKD_JOINS") == "on":
        raise RuntimeError("no new process can set itself up")
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = taskd.TrainState(model=model, optimizer=optimizer)

    @taskd.resilient(state)
    def train() -> None:
        while state.step < PLAN["steps"]:
            reach(state.step + 1, "begin")
            optimizer.zero_grad()
            model(torch.full((3, 4), float(rank() + state.step))).square().mean().backward()
            optimizer.step()
            state.commit()
        dist.barrier()

    train()
    note(f"result-{rank()}", json.dumps({"weights": float(network.weight.detach().double().sum()), "pid": os.getpid()}))


main()
