"""A training without the SDK: it loads its checkpoint, steps with a collective, and writes the next checkpoint."""

import json
import os

import torch
import torch.distributed as dist

from tests.e2e.scripts.points import FOLDER, PLAN, note, rank, reach
from tests.leave import leave


def main() -> None:
    dist.init_process_group("gloo")
    checkpoint = FOLDER / "checkpoint"
    step, total = json.loads(checkpoint.read_text()) if checkpoint.exists() else (0, 0.0)
    if rank() == 0:
        with (FOLDER / "starts").open("a") as starts:
            starts.write(f"{step} {os.getpid()}\n")
    while step < PLAN["steps"]:
        step += 1
        reach(step, "begin")
        part = torch.tensor([float(step * 10 + rank())])
        dist.all_reduce(part)
        total += part.item()
        if rank() == 0:
            note("checkpoint", json.dumps([step, total]))
        dist.barrier()
    note(f"result-{rank()}", json.dumps({"total": total}))
    dist.barrier()
    leave()


main()
