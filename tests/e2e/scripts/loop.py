"""A training as users write it: epochs over a `DataLoader` with workers that augment, and dropout.

There is no seed. `PLAN["loop"]` sets how the epochs are counted, `PLAN["kind"]` the kind of loader.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

import taskd
from tests.e2e.scripts.points import FOLDER, PLAN, note, rank, reach

EPOCHS, SAMPLES, BATCH = 3, 32, 4


class Noisy(Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        noise = torch.rand(8) if PLAN["kind"] != "stateful" else torch.zeros(8)
        return torch.full((8,), index / SAMPLES) + noise


def loader_of(dataset: Dataset[Any]) -> DataLoader[Any]:
    if PLAN["kind"] == "shuffle":
        return DataLoader(dataset, batch_size=BATCH * 2, shuffle=True)
    sampler: DistributedSampler[Any] = DistributedSampler(dataset)
    if PLAN["kind"] == "stateful":
        return StatefulDataLoader(dataset, batch_size=BATCH, sampler=sampler)
    return DataLoader(dataset, batch_size=BATCH, sampler=sampler, num_workers=1, persistent_workers=True)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = loader_of(Noisy())
    state = taskd.TrainState(model=model, optimizer=optimizer, loader=loader)

    def epochs() -> Iterator[int]:
        if PLAN["loop"] == "epochs":
            return state.epochs(EPOCHS)
        return iter(range(state.step // len(loader), EPOCHS))

    @taskd.resilient(state)
    def train() -> None:
        for epoch in epochs():
            if isinstance(loader.sampler, DistributedSampler):
                loader.sampler.set_epoch(epoch)
            for batch in loader:
                reach(state.step + 1, "begin")
                optimizer.zero_grad()
                model(batch).square().mean().backward()
                optimizer.step()
                state.commit()
            reach("epoch", epoch)

    train()
    digest = hashlib.sha256()
    for parameter in network.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    result = {"weights": digest.hexdigest(), "random": torch.rand(1).item(), "step": state.step}
    note(f"result-{rank()}", json.dumps(result))
    loader._iterator = None
    if os.environ.get("TASKD_PROCESS_ENABLE") != "on":
        os._exit(0)  # torch 2.13 alone now and then aborts in a process that ends with its groups
    dist.destroy_process_group()


assert FOLDER.is_dir()
main()
