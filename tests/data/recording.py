"""A rank of a recorded job: a small DDP training over gloo, whose times come from its own black box.

`recording.py PLAN` with {"folder", "steps", "vary", "slow", "load", "onset"}. From step `onset` on, rank 1
computes 1 + `slow` times as long for the same batch, or waits `load` times the usual step for its data. With `vary`,
batches differ by four times, and their length is reported as work. Every 50th step all evaluate, every 100th rank 0
saves.
"""

import csv
import json
import os
import random
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import taskd
from taskd.runtime.agent.pace import Pacer
from taskd.runtime.box.blackbox import Box
from taskd.wire.kinds import JobRank

PLAN = json.loads(sys.argv[1])
WIDTH, USUAL = 384, 768
LENGTHS = (384, 512, 768, 1024, 1536)


class Loader:
    """Makes batches, and may be slow."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.chance = random.Random(f"lengths {rank}")
        self.took_s = 0.0

    def batch(self, step: int, step_s: float) -> torch.Tensor:
        begun = time.perf_counter()
        length = self.chance.choice(LENGTHS) if PLAN["vary"] else USUAL
        made = torch.randn(length, WIDTH)
        if PLAN["load"] and self.rank == 1 and step >= PLAN["onset"]:
            time.sleep(PLAN["load"] * step_s)  # the recorded fault: a loader that is so slow
        self.took_s = time.perf_counter() - begun
        return made


def forward(model: nn.Module, inner: nn.Module, batch: torch.Tensor, extra: float) -> torch.Tensor:
    loss = model(batch).square().mean()
    if extra:  # the same forward and backward for more rows, whose gradients are not used
        more = batch[: max(1, round(extra * len(batch)))]
        parameters = [*inner.parameters()]
        torch.autograd.grad(inner(more).square().mean(), parameters)
    return loss


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    inner = nn.Sequential(*(part for _ in range(3) for part in (nn.Linear(WIDTH, WIDTH), nn.GELU())))
    model = DistributedDataParallel(inner, bucket_cap_mb=64)
    state = taskd.TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1e-3))
    box, pacer, loader = Box.open(Path(os.environ["TASKD_BLACKBOX"])), Pacer(JobRank(rank)), Loader(rank)
    rows: list[list[int]] = []

    @taskd.resilient(state)
    def train() -> None:
        step_s = 0.03
        while state.step < PLAN["steps"]:
            step = state.step
            batch = loader.batch(step, step_s)
            extra = PLAN["slow"] if rank == 1 and step >= PLAN["onset"] else 0.0
            forward(model, inner, batch, extra).backward()
            state.optimizer.step()
            state.optimizer.zero_grad()
            if step % 50 == 49:
                with torch.no_grad():
                    for _ in range(4):
                        inner(torch.randn(USUAL, WIDTH))
            if step % 100 == 99 and rank == 0:
                torch.save(inner.state_dict(), Path(PLAN["folder"]) / "checkpoint")
            state.commit()
            span = pacer.look(box, time.monotonic_ns())
            if span is not None:
                own_us, waited_us, data_us = (
                    round(part * 1e6) for part in (span.own_s - loader.took_s, span.waited_s, loader.took_s)
                )
                rows.append([rank, step, own_us, waited_us, data_us, len(batch) if PLAN["vary"] else 0])
                step_s = 0.9 * step_s + 0.1 * (span.own_s + span.waited_s)

    train()
    with (Path(PLAN["folder"]) / f"rank-{rank}.csv").open("w", newline="") as sink:
        csv.writer(sink).writerows(rows)


main()
