"""A tiny resilient training. Its weights at the end depend on every step of every rank, to the last bit."""

import hashlib
import io
import json
import os
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import taskd
from tests.e2e.scripts.points import FOLDER, PLAN, note, rank, reach


class Giver:
    """A part of the state that is equal on all ranks. A donor waits here if the plan requires it."""

    def __init__(self) -> None:
        self.step = lambda: -1

    def state_dict(self) -> dict[str, int]:
        reach(self.step(), "giving")
        return {"constant": 1}

    def load_state_dict(self, state: dict[str, int]) -> None:
        assert state == {"constant": 1}


class Loader:
    """A part of the state that is this rank's own."""

    def __init__(self) -> None:
        self.at = rank()

    def next(self) -> torch.Tensor:
        self.at = (self.at * 1103515245 + 12345) % (1 << 31)
        return torch.randn(4, 16, generator=torch.Generator().manual_seed(self.at))

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class SlowDisk(io.BytesIO):
    """Target of a checkpoint. A rank waits in it if the plan requires it."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def write(self, data: Any) -> int:
        reach(self.step, "saving")
        return super().write(data)


def go_on(train_step: Callable[[int], None], step: int) -> None:
    """Run one step. With `swallows` in the plan, any error in it is ignored."""
    try:
        train_step(step)
    except Exception as error:
        if not PLAN.get("swallows"):
            raise
        print(f"rank {rank()} swallows {type(error).__name__}", flush=True)


def reduce(loss: torch.Tensor) -> None:
    """Run the backward pass. With `trusts` in the plan, the step goes on after an error in it."""
    try:
        loss.backward()
    except RuntimeError as error:
        if not PLAN.get("trusts"):
            raise
        print(f"rank {rank()} trusts in spite of {type(error).__name__}", flush=True)


def digest(tensors: Iterable[torch.Tensor]) -> str:
    """Return the digest of their bytes."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().numpy().tobytes())
    return found.hexdigest()


def read_ahead() -> object:
    """Start a data loader with processes of its own."""
    numbers: Any = range(64)
    batches: Any = iter(DataLoader(numbers, num_workers=2, persistent_workers=True, generator=torch.Generator()))
    next(batches)
    note(f"loaders-{os.getpid()}", json.dumps([worker.pid for worker in batches._workers]))
    return batches


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Dropout(0.3), nn.Linear(24, 8), nn.ReLU(), nn.Linear(8, 2))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(1 + rank())
    state = taskd.TrainState(
        model=model,
        optimizer=optimizer,
        replicated={"giver": Giver()},
        data={"loader": Loader()},
        backup_every=PLAN.get("backup_every"),
    )
    batches = read_ahead() if PLAN.get("loaders") else None
    state.giver.step = lambda: state.step
    reach("newcomer" if os.environ.get("TASKD_JOINS") == "on" else "setup")

    def train_step(step: int) -> None:
        reach(step, "begin")
        optimizer.zero_grad()
        out = model(state.loader.next())
        reach(step, "forward")
        reduce(out.square().mean())
        optimizer.step()
        reach(step, "stepped")
        state.commit()
        reach(step, "committed")
        if PLAN.get("saves") and rank() == 0:
            torch.save(network.state_dict(), SlowDisk(step))

    @taskd.resilient(state)
    def train() -> None:
        while state.step < PLAN["steps"]:
            go_on(train_step, state.step + 1)
        dist.barrier()
        reach("end")

    train()
    del batches
    weights = digest([*network.parameters(), *(t for s in optimizer.state.values() for t in s.values())])
    result = {"weights": weights, "at": state.loader.at, "random": torch.rand(1).item(), "step": state.step}
    note(f"result-{rank()}", json.dumps({**result, "pid": os.getpid()}))
    if os.environ.get("TASKD_PROCESS_ENABLE") != "on":
        os._exit(0)  # torch 2.13 alone now and then aborts in a process that ends with its groups
    dist.destroy_process_group()


assert FOLDER.is_dir()
main()
