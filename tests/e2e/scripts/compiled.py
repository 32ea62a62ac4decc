"""A compiled training. Each process records its number of graphs at each entry into the training, and at its end."""

import hashlib
import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo.utils import counters
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.e2e.scripts.points import FOLDER, PLAN, note, rank, reach

WIDTH = 16
WAYS = {"first": ColwiseParallel, "second": RowwiseParallel}
WORK = f"""
import hashlib
digest = b""
for _ in range({PLAN.get("rounds", 0)}):
    digest = hashlib.sha256(digest).digest()
"""


def slow(graph: Any, _inputs: Any) -> Any:
    """Compile with real work for a long time in a new process: by itself, or in a child that a thread waits for."""
    if (FOLDER / "met-one").exists() and not counters["stats"]["unique_graphs"] > 1:
        if PLAN["compiler"] == "slow child":
            with ThreadPoolExecutor() as threads:
                threads.submit(subprocess.run, [sys.executable, "-c", WORK], check=True).result()
        else:
            exec(WORK, {})
    return graph


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)
        self.dropout = nn.Dropout(0.0 if PLAN["model"] == "tensors" else 0.1)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        grown: torch.Tensor = self.second(self.dropout(torch.tanh(self.first(rows))))
        return grown


def compiled(part: Any) -> Any:
    """Return the model that is trained, made of these two blocks."""
    backend = slow if PLAN["compiler"].startswith("slow") else PLAN["compiler"]
    if PLAN["model"] == "ddp":
        return torch.compile(DistributedDataParallel(part), backend=backend)
    if PLAN["model"] == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        for one in part:
            one.compile(backend=backend)
            fully_shard(one)
        return fully_shard(part)
    ways: Any = {f"{at}.{name}": way() for at in (0, 1) for name, way in WAYS.items()}
    parallelize_module(part, init_device_mesh("cpu", (2,)), ways)
    return torch.compile(part, backend=backend, fullgraph=True)


def main() -> None:
    torch.set_num_threads(1)
    if (FOLDER / "met-one").exists() and "kernels" in PLAN:
        shutil.rmtree(PLAN["kernels"])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    part: Any = nn.Sequential(Block(), Block())
    model = compiled(part)
    optimizer = torch.optim.AdamW(part.parameters(), lr=1e-2, foreach=False)
    state = taskd.TrainState(
        model=part, optimizer=optimizer, seed=1, backup_every=2 if PLAN["model"] != "ddp" else None
    )
    graphs: list[int] = []

    @taskd.resilient(state)
    def train() -> None:
        graphs.append(counters["stats"]["unique_graphs"])
        while state.step < PLAN["steps"]:
            share = rank() if PLAN["model"] != "tensors" else 0
            rows = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(10 * state.step + share))
            optimizer.zero_grad()
            loss = model(rows).square().mean()
            loss.register_hook(lambda _gradient, step=state.step: reach(step, "backward"))
            loss.backward()
            optimizer.step()
            state.commit()

    train()
    graphs.append(counters["stats"]["unique_graphs"])
    digest = hashlib.sha256()
    for tensor in part.state_dict().values():
        digest.update((tensor.to_local() if hasattr(tensor, "to_local") else tensor).numpy().tobytes())
    hits = counters["inductor"]["fxgraph_cache_hit"]
    note(f"result-{rank()}", json.dumps({"weights": digest.hexdigest(), "graphs": graphs, "hits": hits}))
    dist.barrier()
    dist.destroy_process_group()


main()
