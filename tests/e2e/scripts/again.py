"""A training after which the script makes its process groups anew, for an evaluation, several times."""

import json
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.e2e.scripts.points import PLAN, note, rank, reach

torch.set_num_threads(1)
dist.init_process_group("gloo")
MODEL = DistributedDataParallel(nn.Linear(8, 2))
OPTIMIZER = torch.optim.SGD(MODEL.parameters(), lr=1e-3)
STATE = taskd.TrainState(seed=1, model=MODEL, optimizer=OPTIMIZER)


@taskd.resilient(STATE)
def train() -> None:
    while STATE.step < PLAN["steps"]:
        reach(STATE.step + 1, "begin")
        OPTIMIZER.zero_grad()
        MODEL(torch.randn(4, 8)).square().mean().backward()
        OPTIMIZER.step()
        STATE.commit()


train()
totals = []
for _ in range(6):
    dist.destroy_process_group()
    dist.init_process_group("gloo")
    total = torch.tensor([rank() + 1.0])
    dist.all_reduce(total)
    totals.append(total.item())
    dist.barrier()
note(f"result-{rank()}", json.dumps({"totals": totals}))
os._exit(0)
