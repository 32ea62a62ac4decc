"""A training whose set-up shares run id, seed, sizes and number of steps among the ranks, as scripts do."""

import json
import os
import uuid
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import all_reduce
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.e2e.scripts.points import FOLDER, PLAN, note, rank, reach


def agree() -> dict[str, Any]:
    """Return the values that every rank receives from another one, and would not know alone."""
    names = [uuid.uuid4().hex if rank() == 0 else None]
    dist.broadcast_object_list(names, src=0)
    pids: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(pids, os.getpid())
    seed = torch.randint(1 << 40, (1,)) if rank() == 0 else torch.zeros(1, dtype=torch.int64)
    dist.broadcast(seed, 0)
    steps = torch.tensor([PLAN["steps"] + 3 * rank()])
    all_reduce(steps, op=dist.ReduceOp.MIN)
    parts = [torch.zeros(2) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, torch.tensor([rank() + 0.5, 1.0]))
    shard: list[object] = [None]
    dist.scatter_object_list(shard, [{"shard": 10}, {"shard": 11}] if rank() == 0 else None, src=0)
    dist.barrier()
    told = {"name": names[0], "pids": pids, "seed": seed.item(), "steps": steps.item(), "shard": shard[0]}
    return {**told, "parts": [part.tolist() for part in parts]}


def extra() -> None:
    """Run the plan's addition to the set-up."""
    kind = PLAN.get("extra")
    if kind == "large":
        dist.broadcast(torch.ones(100_000), 0)
    elif kind == "weights":
        for parameter in NETWORK.parameters():
            dist.broadcast(parameter.data, 0)
    elif kind == "changed" and (FOLDER / "snapshot").exists():
        dist.all_reduce(torch.ones(3))


torch.set_num_threads(1)
dist.init_process_group("gloo")
NETWORK = nn.Sequential(nn.Linear(8, 20_000), nn.Linear(20_000, 2))
TOLD = agree()
extra()
torch.manual_seed(TOLD["seed"])
MODEL: nn.Module = DistributedDataParallel(NETWORK)
OPTIMIZER = torch.optim.SGD(MODEL.parameters(), lr=1e-3)
STATE = taskd.TrainState(seed=TOLD["seed"], model=NETWORK, optimizer=OPTIMIZER)


@taskd.resilient(STATE)
def train() -> None:
    while STATE.step < TOLD["steps"]:
        (FOLDER / "snapshot").touch()
        reach(STATE.step + 1, "begin")
        OPTIMIZER.zero_grad()
        MODEL(torch.randn(4, 8)).square().mean().backward()
        OPTIMIZER.step()
        STATE.commit()


train()
weights = NETWORK.state_dict()["1.weight"].numpy().tobytes().hex()
note(f"result-{rank()}", json.dumps({**TOLD, "shard": TOLD["shard"], "weights": weights, "step": STATE.step}))
dist.barrier()
os._exit(0)
