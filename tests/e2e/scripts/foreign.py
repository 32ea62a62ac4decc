"""A usual DDP script in which rank 0 now and then works alone, and the others wait in a barrier.

The plan: `work`, a list of its kinds of work, each for `seconds`, every `every` steps after the first `steps`.
"""

import hashlib
import json
import socket
import subprocess
import time
from collections.abc import Callable

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.e2e.scripts.points import PLAN, note, rank

SECONDS = float(PLAN["seconds"])


def upload() -> None:
    """Upload by a program of its own."""
    subprocess.run(["sleep", str(SECONDS)], check=True)


def compute() -> None:
    end_s = time.monotonic() + SECONDS
    while time.monotonic() < end_s:
        numpy.linalg.svd(numpy.ones((200, 200)))


def receive() -> None:
    """Wait for a server that answers late."""
    here, _there = socket.socketpair()
    here.settimeout(SECONDS)
    try:
        here.recv(1)
    except TimeoutError:
        return


def rest() -> None:
    time.sleep(SECONDS)


def sample() -> None:
    end_s = time.monotonic() + SECONDS
    turns = 0
    while time.monotonic() < end_s:
        turns += 1


WORK: dict[str, Callable[[], None]] = {
    "upload": upload,
    "compute": compute,
    "receive": receive,
    "rest": rest,
    "sample": sample,
}


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    network = nn.Linear(16, 2)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    state = taskd.TrainState(model=model, optimizer=optimizer)
    due = {PLAN["steps"] + PLAN["every"] * number: name for number, name in enumerate(PLAN["work"])}

    @taskd.resilient(state)
    def train() -> None:
        while state.step < max(due) + PLAN["every"]:
            if state.step in due:
                if rank() == 0:
                    WORK[due[state.step]]()
                dist.barrier()
            optimizer.zero_grad()
            model(torch.ones(4, 16) * state.step).square().mean().backward()
            optimizer.step()
            time.sleep(0.005)
            state.commit()

    train()
    weights = hashlib.sha256(network.weight.detach().numpy().tobytes()).hexdigest()
    note(f"result-{rank()}", json.dumps({"step": state.step, "weights": weights}))
    dist.destroy_process_group()


main()
