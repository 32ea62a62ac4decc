"""A training whose learning rate follows a count that begins anew: that of an iterator made beforehand."""

import hashlib
import json
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import taskd
from tests.e2e.scripts.points import note, rank, reach

EPOCHS, SAMPLES, BATCH = 2, 48, 4

torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
network = nn.Linear(8, 1)
model = DistributedDataParallel(network)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
dataset = TensorDataset(torch.rand(SAMPLES, 8))
loader = DataLoader(dataset, batch_size=BATCH, sampler=DistributedSampler(dataset))
state = taskd.TrainState(model=model, optimizer=optimizer, loader=loader, seed=1)


def adjust(at: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = 0.1 / (1 + at)


@taskd.resilient(state)
def train() -> None:
    for epoch in state.epochs(EPOCHS):
        for i, (rows,) in enumerate(iter(loader)):
            adjust(epoch + i / len(loader))
            reach(state.step + 1, "begin")
            optimizer.zero_grad()
            (model(rows) - 1).square().mean().backward()
            optimizer.step()
            state.commit()


train()
digest = hashlib.sha256(b"".join(parameter.detach().numpy().tobytes() for parameter in network.parameters()))
note(f"result-{rank()}", json.dumps({"weights": digest.hexdigest(), "step": state.step}))
if os.environ.get("TASKD_PROCESS_ENABLE") != "on":
    os._exit(0)  # torch 2.13 alone now and then aborts in a process that ends with its groups
dist.destroy_process_group()
