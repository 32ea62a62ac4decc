"""A training whose state has the bare model, as for clean keys in checkpoints; the DDP wrapper is a variable."""

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
    network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.BatchNorm1d(16), nn.Linear(16, 2))
    model = DistributedDataParallel(network, bucket_cap_mb=PLAN.get("bucket_mb", 25))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    state = taskd.TrainState(seed=1, model=network, optimizer=optimizer)

    @taskd.resilient(state)
    def train() -> None:
        while state.step < PLAN["steps"]:
            step = state.step + 1
            reach(step, "begin")
            optimizer.zero_grad()
            model(torch.randn(4, 8)).square().mean().backward()
            reach(step, "backward")
            optimizer.step()
            state.commit()

    train()
    note(f"result-{rank()}", json.dumps({"weights": digest(network), "step": state.step}))
    dist.destroy_process_group()


main()
