"""Trainings of users whose own code raises: `how` in the plan names the error and its place."""

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.e2e.scripts.points import FOLDER, PLAN, note, rank

HOW, STEPS = PLAN["how"], 8
CHECKPOINT = Path(FOLDER, "last.pt")

dist.init_process_group("gloo")
groups = [dist.new_group() for _ in range(PLAN.get("groups", 0))]  # they take time to be destroyed
model = DistributedDataParallel(nn.Linear(3, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
without_copies = HOW == "repeats"
"""Disables copies. With copies by the third step, which depend on the machine, there is one more start."""
state = taskd.TrainState(model=model, optimizer=optimizer, backup_every=0 if without_copies else None)
if CHECKPOINT.exists():
    model.load_state_dict(torch.load(CHECKPOINT))
calls = [0]
raised: list[bool] = []


def step() -> None:
    optimizer.zero_grad()
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()


def leave() -> None:
    """Leave the script in the way that `how` names."""
    match HOW:
        case "StopIteration":
            next(iter([]))
        case "sys.exit":
            sys.exit(3)
        case "KeyboardInterrupt":
            raise KeyboardInterrupt
        case "GeneratorExit":
            raise GeneratorExit
        case _:
            raise BaseException("of the script")


@taskd.resilient(state)
def epoch() -> None:
    step()
    state.commit()


@taskd.resilient(state)
def nested() -> None:
    for _ in range(3):
        epoch()


@taskd.resilient(state)
def torn() -> None:
    """Kill all ranks while rank 0 writes its checkpoint."""
    step()
    state.commit()
    if rank() == 0:
        torch.save(model.state_dict(), CHECKPOINT)
        os.truncate(CHECKPOINT, CHECKPOINT.stat().st_size // 2)
    dist.barrier()
    os.kill(os.getpid(), signal.SIGKILL)


@taskd.resilient(state)
def repeats() -> None:
    while state.step < STEPS:
        step()
        if state.step == 3:
            raise ValueError(f"process {os.getpid()} has a bad batch")
        state.commit()


@taskd.resilient(state)
def caught() -> None:
    while state.step < STEPS:
        step()
        if state.step == 3 and not raised:
            raised.append(True)
            raise ValueError("a bad batch")
        state.commit()


@taskd.resilient(state)
def survivor() -> None:
    """Train while rank 1 is killed. Rank 0 survives that, and fails right after its first commit of the new world."""
    calls[0] += 1
    while state.step < STEPS:
        step()
        if rank() == 1 and state.step == 3 and os.environ.get("TASKD_JOINS") != "on":
            os.kill(os.getpid(), signal.SIGKILL)
        state.commit()
        if calls[0] == 2:
            leave()


if HOW == "caught":
    while True:
        try:
            caught()
            break
        except ValueError as error:
            print(f"rank {rank()} goes on after {error}", flush=True)
    note(f"result-{rank()}", str(state.step))
    dist.destroy_process_group()
else:
    {"nested": nested, "torn": torn, "repeats": repeats}.get(HOW, survivor)()
