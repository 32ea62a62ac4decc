"""A training that records each walk through the heap: calls that ask the collector for its objects, or collect.

It does not record the calls of a rank's standby before: the functions are replaced when the script begins.
"""

import gc
import json
import traceback
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.e2e.scripts.points import PLAN, note, rank, reach

SEEN: list[str] = []
WALKS = ("get_objects", "collect", "get_referrers")


def recording(name: str, own: Any) -> Any:
    def walk(*args: Any, **options: Any) -> Any:
        SEEN.append(f"gc.{name}: {''.join(traceback.format_stack(limit=6))}")
        return own(*args, **options)

    return walk


for walk_name in WALKS:
    setattr(gc, walk_name, recording(walk_name, getattr(gc, walk_name)))

dist.init_process_group("gloo")
torch.manual_seed(0)
if PLAN.get("drops"):  # a wrapper that lives on in a cycle of references
    dropped = DistributedDataParallel(nn.Linear(4, 2))
    vars(dropped)["itself"] = [dropped]
    del dropped
model = DistributedDataParallel(nn.Linear(4, 4))
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
state = taskd.TrainState(model=model, optimizer=optimizer, scheduler=scheduler)


@taskd.resilient(state)
def train() -> None:
    if state.step == 0:
        SEEN.clear()  # when the first processes enter, no process waits for them
    while state.step < PLAN["steps"]:
        reach(state.step, "begin")
        optimizer.zero_grad()
        model(torch.ones(1, 4) * rank()).square().sum().backward()
        optimizer.step()
        scheduler.step()
        state.commit()


train()
note(f"result-{rank()}", json.dumps({"seen": SEEN, "weight": float(model.module.weight.sum())}))
dist.barrier()
