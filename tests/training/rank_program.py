"""One rank of the test job. It plays the runtime itself: reports over the store, takes the plan, rebuilds, restores, goes on.

Run by `job.py` as `rank_program.py PORT OPTIONS_JSON RANK|spare`.
"""

import hashlib
import json
import os
import random
import signal
import sys
from datetime import timedelta

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from taskd.adaptors.groups import World
from taskd.adaptors.training import TrainState
from taskd.adaptors.training.layout import layout_of, repoint
from taskd.adaptors.training.restore import restore
from taskd.wire.messages import WorldPlan

PORT, OPTIONS, NAME = int(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
SIZE = OPTIONS["ranks"]
FAULTS = OPTIONS["faults"]


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
    """A data position with a state of its own: a random walk through the data."""

    def __init__(self, rank: int) -> None:
        self.at = rank
        self.seen = 0

    def next(self) -> torch.Tensor:
        self.at = (self.at * 1103515245 + 12345) % (1 << 31)
        self.seen += 1
        return torch.randn(8, 16, generator=torch.Generator().manual_seed(self.at))

    def state_dict(self) -> dict:
        return {"at": self.at, "seen": self.seen}

    def load_state_dict(self, state: dict) -> None:
        self.at, self.seen = state["at"], state["seen"]


def die_if(rank: int, step: int, point: str) -> None:
    if any(f["rank"] == rank and f["step"] == step and f["point"] == point for f in FAULTS) and NAME != "spare":
        os.kill(os.getpid(), signal.SIGKILL)


def train(state: TrainState, rank: int, losses: dict) -> None:
    while state.step < OPTIONS["steps"]:
        step = state.step + 1
        die_if(rank, step, "before forward")
        for optimizer in state.parts.optimizers:
            optimizer.zero_grad()
        noise = random.random()  # python's generator takes part too
        out = state.model(state.loader.next())
        die_if(rank, step, "after forward")
        loss = (out * (1 + noise)).square().mean()
        loss.backward()
        die_if(rank, step, "after backward")
        state.optimizer.step()
        if OPTIONS["logs"]:
            die_if(rank, step, "before logging")
            dist.all_reduce(loss.detach())
        die_if(rank, step, "after step")
        state.scheduler.step()
        state.commit()
        losses[step] = loss.item()
        die_if(rank, step, "after commit")


def main() -> None:
    torch.set_num_threads(1)
    link = dist.TCPStore("127.0.0.1", PORT, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=60))
    world = World()
    if NAME == "spare":
        given = json.loads(link.get("spare"))
        rank, generation = given["rank"], given["generation"]
        world.pretend(rank, SIZE)
    else:
        rank, generation = int(NAME), 0
        world.observe()
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(SIZE), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(PORT), TORCHELASTIC_USE_AGENT_STORE="True"
    )
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    pair = dist.new_group([0, 1]) if OPTIONS["groups"] else None
    torch.manual_seed(7)
    net = Net()
    torch.manual_seed(1000 + rank)
    random.seed(rank)
    model = DistributedDataParallel(net, bucket_cap_mb=OPTIONS["bucket_mb"], **OPTIONS["ddp"])
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
    state = TrainState(model=model, optimizer=optimizer, scheduler=scheduler, loader=Walk(rank))
    state.attach(f"{OPTIONS['directory']}/position-{rank}")
    if NAME == "spare":
        state.declare_empty()
    else:
        state.begin()
    losses: dict = {}
    notes = []
    adopted = 0
    done = False
    while not done:
        try:
            if NAME == "spare" and generation == world.generation + 1:
                raise RuntimeError("a newcomer waits for its world")
            train(state, rank, losses)
            done = True
        except RuntimeError as error:
            cause = str(error)
        if done:
            break
        if NAME != "spare" or world.generation:
            world.abandon()
            generation = world.generation + 1
        report = {"step": state.step, "condition": state.condition().value, "cause": cause[:300]}
        link.set(f"report/{generation}/{rank}", json.dumps(report))
        plan = msgspec.msgpack.decode(link.get(f"plan/{generation}"), type=WorldPlan)
        world.rebuild(plan, rank)
        adopted += repoint(state, world, plan).adopted
        notes.append(restore(state, plan, rank).note)
        world.bury(rank)
    if pair is not None and rank < 2:
        check = torch.ones(1)
        dist.all_reduce(check, group=pair)
        assert check.item() == 2
    digest = hashlib.sha256()
    for tensor in (*net.parameters(), *(t for s in optimizer.state.values() for t in s.values())):
        digest.update(tensor.detach().numpy().tobytes())
    buffers = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in net.buffers()))
    model._update_process_group(dist.group.WORLD)
    result = {
        "digest": digest.hexdigest(),
        "buffers": buffers.hexdigest(),
        "notes": notes,
        "adopted": adopted,
        "layout": layout_of(model),
        "lr": scheduler.get_last_lr(),
        "position": state.loader.state_dict(),
        "losses": losses,
        "pid": os.getpid(),
    }
    link.set(f"result/{rank}", json.dumps(result))
    link.get("end")
    dist.destroy_process_group()


main()
