"""A training of DDP or FSDP2 that needs nothing but torch. Its weights at the end depend on every step of every rank.

The plan, beside `points`: `steps`, `kind` ("ddp" or "fsdp"), `state` (further arguments of the state), `load` (a folder
of checkpoints) and `save` (a step after which one is written there).
"""

import hashlib
import importlib.util
import json
import random
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.e2e.scripts.points import PLAN, note, rank, reach


def digest(tensors: list[Any]) -> str:
    """Return the digest of the tensors' bytes, without numpy."""
    parts = [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]
    listed = [part.detach().contiguous().reshape(-1).view(torch.uint8).tolist() for part in parts]
    return hashlib.sha256(b"".join(map(bytes, listed))).hexdigest()


def main() -> None:
    assert importlib.util.find_spec("numpy") is None, "this environment has numpy"
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 2))
    model: Any
    if PLAN.get("kind") == "fsdp":
        model = fully_shard(network, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    else:
        model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(1 + rank())
    random.seed(1 + rank())
    state = taskd.TrainState(model=model, optimizer=optimizer, **PLAN.get("state", {}))
    if "load" in PLAN:
        loaded = taskd.load_latest(state, PLAN["load"])
        note(f"loaded-{rank()}", str(loaded and state.step))
    if "save" in PLAN:
        state.after_commit(lambda _step: taskd.save(state, PLAN["load"]), every=PLAN["save"])

    @taskd.resilient(state)
    def train() -> None:
        while state.step < PLAN["steps"]:
            step = state.step + 1
            reach(step, "begin")
            optimizer.zero_grad()
            loss = model(torch.randn(4, 16) * random.gauss(1.0, 0.1)).square().mean()
            reach(step, "forward")
            loss.backward()
            optimizer.step()
            state.commit()
        dist.barrier()

    train()
    weights = digest([*model.parameters(), *(t for s in optimizer.state.values() for t in s.values())])
    random_numbers = [torch.rand(1).item(), random.gauss(0.0, 1.0)]
    note(f"result-{rank()}", json.dumps({"weights": weights, "random": random_numbers, "step": state.step}))
    dist.destroy_process_group()


main()
