"""Trainings with a value that a rank carries from step to step, and that changes after the forward pass.

`PLAN["how"]` names it: "hidden" is the memory of a recurrent network, set from the output of the pass; "draws" takes
random numbers into the loss, without a seed; "counts" counts rows after the optimizer's step.
"""

import hashlib
import json
import os
import random
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.e2e.scripts.points import PLAN, note, rank, reach

HOW, STEPS = PLAN["how"], PLAN["steps"]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.GRUCell(4, 6), nn.Linear(6, 1)

    def forward(self, rows: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.cell(rows, hidden)
        return self.out(hidden), hidden


class Reader:
    """A stream of rows, the number of rows seen, and the network's memory of them."""

    def __init__(self) -> None:
        self.at, self.seen, self.hidden = 100 * rank(), 0, torch.zeros(3, 6)

    def rows(self) -> torch.Tensor:
        self.at += 1
        return torch.randn(3, 4, generator=torch.Generator().manual_seed(self.at)) + 0.1 * self.seen

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "seen": self.seen, "hidden": self.hidden.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.seen, self.hidden = state["at"], state["seen"], state["hidden"].clone()


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    random.seed(rank())
    network, reader = Recurrent(), Reader()
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = taskd.TrainState(model=model, optimizer=optimizer, data={"reader": reader})

    def step_of() -> torch.Tensor:
        step = state.step + 1
        optimizer.zero_grad()
        out, hidden = model(reader.rows(), reader.hidden)
        noise = random.random() if HOW == "draws" else 1.0
        if HOW == "hidden":
            reader.hidden = hidden.detach()
        loss = (out * noise).square().mean()
        loss.backward()
        reach(step, "backward")
        optimizer.step()
        reach(step, "stepped")
        return loss.detach()

    def train() -> None:
        while state.step < STEPS:
            loss = step_of()
            if PLAN["logs"]:
                dist.all_reduce(loss)
            state.commit()

    def counting() -> None:
        while state.step < STEPS:
            step_of()
            reader.seen += 3
            state.commit()

    taskd.resilient(state)(counting if HOW == "counts" else train)()
    digest = hashlib.sha256()
    for parameter in network.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    note(f"result-{rank()}", json.dumps({"weights": digest.hexdigest(), "at": reader.at, "step": state.step}))
    if os.environ.get("TASKD_PROCESS_ENABLE") != "on":
        os._exit(0)  # torch 2.13 alone now and then aborts in a process that ends with its groups
    dist.destroy_process_group()


main()
