"""One rank of the test job. It acts as the runtime: reports over the store, receives the plan, rebuilds, restores.

Run by `job.py` as `rank_program.py PORT OPTIONS_JSON RANK|spare-N`.
"""

import hashlib
import json
import os
import random
import signal
import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import TCPStore
from torch.nn.parallel import DistributedDataParallel

from taskd.adaptors.groups import GroupWorld
from taskd.adaptors.training.restore import restore
from taskd.adaptors.training.sharding.layout import layout_of, repoint
from taskd.adaptors.training.state import TrainState
from taskd.wire.kinds import JobRank, WorldRank
from taskd.wire.messages import WorldPlan
from tests.leave import leave

PORT, OPTIONS, NAME = int(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
SPARE = NAME.startswith("spare")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        width = OPTIONS["width"]
        # Used in another order than registered, so that rebuilt buckets differ from the first ones.
        self.last = nn.Linear(width, 4)
        self.norm = nn.BatchNorm1d(width) if OPTIONS["norm"] else nn.Identity()
        self.first = nn.Linear(16, width)
        self.middle = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.drop = nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).relu()
        for layer in self.middle:
            x = self.drop(layer(x).relu())
        return self.last(self.norm(x))


class Walk:
    """Data position with a state of its own: a random walk through the data."""

    def __init__(self, rank: int) -> None:
        self.at = rank
        self.seen = 0

    def next(self) -> torch.Tensor:
        self.at = (self.at * 1103515245 + 12345) % (1 << 31)
        self.seen += 1
        return torch.randn(8, 16, generator=torch.Generator().manual_seed(self.at))

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "seen": self.seen}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.seen = state["at"], state["seen"]


@dataclass
class Rank:
    rank: int
    world: GroupWorld
    link: TCPStore
    state: TrainState
    notes: list[str]
    adopted: int = 0

    def die_if(self, step: int, point: str) -> None:
        faults = OPTIONS["faults"][self.world.generation :]  # earlier faults have happened: each starts a generation
        if faults and faults[0] == {"rank": self.rank, "step": step, "point": point}:
            os.kill(os.getpid(), signal.SIGKILL)

    def train(self) -> None:
        state = self.state
        while state.step < OPTIONS["steps"]:
            step = state.step + 1
            self.die_if(step, "before forward")
            state.optimizer.zero_grad()
            noise = random.random() + random.gauss(0, 1) + np.random.normal()
            out = state.model(state.loader.next())
            self.die_if(step, "after forward")
            loss = (out * noise).square().mean()
            loss.backward()
            self.die_if(step, "after backward")
            state.optimizer.step()
            if OPTIONS["logs"]:
                self.die_if(step, "before logging")
                dist.all_reduce(loss.detach())
            self.die_if(step, "after step")
            state.scheduler.step()
            state.commit()
            self.die_if(step, "after commit")

    def recover(self, generation: int, cause: str) -> None:
        report = {"step": self.state.step, "condition": self.state._recovery.condition().value, "cause": cause}
        self.link.set(f"report/{generation}/{self.rank}", json.dumps(report))
        plan = msgspec.json.decode(self.link.get(f"plan/{generation}"), type=WorldPlan)
        self.world.rebuild(plan, JobRank(self.rank))
        self.adopted += repoint(self.state._recovery, self.world, plan).adopted
        self.notes.append(restore(self.state._recovery, plan, WorldRank(self.rank)).note)
        self.world.destroy_retired()

    def go(self, generation: int) -> None:
        if generation:
            self.recover(generation, "a newcomer waits for its world")
        while True:
            try:
                self.train()
            except RuntimeError as error:
                cause = str(error)[:300]
            else:
                return
            self.world.abandon()
            self.recover(self.world.generation + 1, cause)

    def result(self) -> dict[str, Any]:
        model, optimizer = self.state.model, self.state.optimizer
        tensors = [*model.parameters(), *(t for state in optimizer.state.values() for t in state.values())]
        model._update_process_group(dist.group.WORLD)  # makes DDP read the layout again
        return {
            "weights": hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in tensors)).hexdigest(),
            "buffers": hashlib.sha256(b"".join(t.numpy().tobytes() for t in model.buffers())).hexdigest(),
            "notes": self.notes,
            "adopted": self.adopted,
            "layout": layout_of(model),
            "lr": self.state.scheduler.get_last_lr(),
            "position": self.state.loader.state_dict(),
            "random": [random.random(), float(np.random.normal()), torch.rand(1).item()],
            "pid": os.getpid(),
        }


def build(rank: int) -> TrainState:
    torch.manual_seed(7)
    net = Net()
    torch.manual_seed(1000 + rank)
    random.seed(rank)
    np.random.seed(rank)
    model = DistributedDataParallel(net, bucket_cap_mb=OPTIONS["bucket_mb"], **OPTIONS["ddp"])
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
    return TrainState(model=model, optimizer=optimizer, scheduler=scheduler, data={"loader": Walk(rank)})


def main() -> None:
    torch.set_num_threads(1)
    link = TCPStore("127.0.0.1", PORT, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=90))
    world = GroupWorld()
    size = OPTIONS["ranks"]
    if SPARE:
        given = json.loads(link.get(NAME))
        rank, generation = given["rank"], given["generation"]
        world.pretend(rank, size)
    else:
        rank, generation = int(NAME), 0
        world.observe()
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(PORT),
        TORCHELASTIC_USE_AGENT_STORE="True",
    )
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    pair = dist.new_group([0, 1]) if OPTIONS["groups"] else None
    state = build(rank)
    state._recovery.attach(f"{OPTIONS['directory']}/position-{rank}")
    if SPARE:
        state._recovery.declare_empty()
    else:
        state._recovery.begin()
    process = Rank(rank, world, link, state, [])
    process.go(generation)
    if pair is not None and rank < 2:
        check = torch.ones(1)
        dist.all_reduce(check, group=pair)
        assert check.item() == 2
    link.set(f"result/{rank}", json.dumps(process.result()))
    link.get("end")
    leave()


main()
