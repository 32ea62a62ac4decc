"""The program of every rank of `tests.faults`: a small training that commits steps, and fails once by its plan.

    program.py PLAN      (JSON: `tests.faults.plan.Plan`)

Each step has three collectives: DDP's bucket, the metrics of the step, and a vote whether to go on. A rank that has
failed once has left a note of it (`Plan.strike`), so its successor does not fail.
"""

import hashlib
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.faults.data import Source
from tests.faults.injections import AT_BEGIN, IN_METRICS, live_in_cgroup, native, save
from tests.faults.plan import Plan

WIDTH = 64
METRICS = 16
SAVED_EVERY = 50
BALLAST = 1 << 16
SLOW_MS = 60.0
PLAN = Plan.read(sys.argv[1])
RANK = int(os.environ["RANK"])


def compute(step: int, *, more_ms: float = 0.0) -> None:
    """Take the time of a step besides its collectives. The first steps are short, until the job's rhythm is known."""
    time.sleep(((PLAN.quick_ms if step < PLAN.settled else PLAN.step_ms) + more_ms) / 1000)


def batch_of(step: int, source: Source, *, fails: bool) -> Tensor:
    """Return the next batch. With a fault, it does not come, or has an element that is no number."""
    if fails and PLAN.fault == "data":
        PLAN.strike(RANK)
    batch = source.next(step)
    if fails and PLAN.fault == "not finite":
        batch[0, 0] = float("nan")
        PLAN.strike(RANK)
    return batch


def metrics(loss: Tensor, *, fails: bool) -> None:
    """Reduce the loss and more values over all ranks."""
    values = torch.full((METRICS,), float(loss.detach()))
    if fails and PLAN.fault in IN_METRICS:
        PLAN.strike(RANK)
        IN_METRICS[PLAN.fault](values)
    else:
        dist.all_reduce(values)


def train(state: taskd.TrainState, model: nn.Module, source: Source) -> None:
    """Train until all steps are done, or until this rank leaves early."""
    while state.step < PLAN.steps:
        step = state.step + 1
        fails = step == PLAN.at and RANK in PLAN.victims and not PLAN.has_struck(RANK)
        if fails and PLAN.fault == "leave":
            PLAN.strike(RANK)
            return
        if fails and PLAN.fault in AT_BEGIN:
            AT_BEGIN[PLAN.fault](PLAN, RANK)
        if slows(step):
            compute(step, more_ms=SLOW_MS)
        else:
            compute(step)
        batch = batch_of(step, source, fails=fails)
        state.optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        metrics(loss, fails=fails)
        state.optimizer.step()
        dist.all_reduce(torch.ones(1, dtype=torch.int32), op=dist.ReduceOp.MIN)  # 1 if all want to go on
        if PLAN.fault == "disk" and step % SAVED_EVERY == 0:
            save(PLAN, RANK, {"model": model.state_dict(), "ballast": torch.zeros(BALLAST)}, fails=fails)
        if PLAN.tells_loss:
            state.commit(loss=loss)
        else:
            state.commit()
    dist.barrier()


def slows(step: int) -> bool:
    """Return whether this rank has become slow."""
    slow = PLAN.fault == "slow" and RANK in PLAN.victims and step >= PLAN.at
    if slow and not PLAN.has_struck(RANK):
        PLAN.strike(RANK)
    return slow


def main() -> None:
    """Run one rank."""
    torch.set_num_threads(1)
    native(PLAN)
    live_in_cgroup(PLAN, RANK)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    network = nn.Linear(WIDTH, WIDTH)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    state = taskd.TrainState(model=model, optimizer=optimizer)
    source = Source(PLAN, RANK, WIDTH)
    taskd.resilient(state)(lambda: train(state, model, source))()
    digest = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in network.state_dict().values()))
    PLAN.note(f"result-{RANK}", json.dumps({"step": state.step, "weights": digest.hexdigest(), "pid": os.getpid()}))
    dist.destroy_process_group()


main()
