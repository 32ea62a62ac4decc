"""A training whose state has the bare model, as for clean keys in checkpoints; the DDP wrappers are variables."""

import json

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.e2e.scripts.points import PLAN, note, rank, reach


def digest(network: nn.Module) -> list[str]:
    return [parameter.detach().numpy().tobytes().hex() for parameter in network.parameters()]


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    first = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.BatchNorm1d(16), nn.Linear(16, 2))
    network = nn.ModuleList([first, *(nn.Linear(2, 2) for _ in range(PLAN.get("wrappers", 1) - 1))])
    wrappers = [DistributedDataParallel(part, bucket_cap_mb=PLAN.get("bucket_mb", 25)) for part in network]
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    state = taskd.TrainState(seed=1, model=network, optimizer=optimizer)

    @taskd.resilient(state)
    def train() -> None:
        while state.step < PLAN["steps"]:
            step = state.step + 1
            reach(step, "begin")
            optimizer.zero_grad()
            outcome = torch.randn(4, 8)
            for wrapper in wrappers:
                outcome = wrapper(outcome)
            outcome.square().mean().backward()
            reach(step, "backward")
            optimizer.step()
            state.commit()

    train()
    note(f"result-{rank()}", json.dumps({"weights": digest(network), "step": state.step}))
    dist.destroy_process_group()


main()
