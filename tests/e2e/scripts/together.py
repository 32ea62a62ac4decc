"""A training whose ranks find each other by files in its set-up, as in some libraries: all have to start together.

It goes on from a checkpoint. With `"sdk"` in the plan its loop is resilient, too.
"""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.e2e.scripts.points import FOLDER, PLAN, note, rank, reach

TIMEOUT_S = 3.0


def meet() -> None:
    """Wait for a file of each rank of this start."""
    start = os.environ["TORCHELASTIC_RESTART_COUNT"]
    (FOLDER / f"ready-{start}-{rank()}").touch()
    wanted, end_s = int(os.environ["WORLD_SIZE"]), time.monotonic() + TIMEOUT_S
    while (found := len(list(FOLDER.glob(f"ready-{start}-*")))) < wanted:
        if time.monotonic() > end_s:
            raise TypeError(f"found {found} of {wanted} ranks")
        time.sleep(0.05)


def main() -> None:
    dist.init_process_group("gloo")
    meet()
    torch.manual_seed(0)
    network = nn.Linear(4, 2)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    snapshot, unfinished, first = FOLDER / "snapshot.pt", FOLDER / "unfinished.pt", 0
    if snapshot.exists():
        kept = torch.load(snapshot)
        network.load_state_dict(kept["model"])
        first = kept["step"]
    state = taskd.TrainState(model=model, optimizer=optimizer)
    state.step = first

    def train() -> None:
        while state.step < PLAN["steps"]:
            reach(state.step + 1, "begin")
            optimizer.zero_grad()
            model(torch.full((3, 4), float(rank() + state.step))).square().mean().backward()
            optimizer.step()
            state.commit()
            if rank() == 0:
                torch.save({"model": network.state_dict(), "step": state.step}, unfinished)
                unfinished.rename(snapshot)
        dist.barrier()

    (taskd.resilient(state)(train) if PLAN.get("sdk") else train)()
    note(f"result-{rank()}", f'"{float(network.weight.detach().double().sum())!r} {first}"')
    os._exit(0)  # torch 2.13 alone now and then aborts in a process that ends with its groups


main()
