"""Trainings that only a fault makes inexact, each in its own way: `how` in the plan names it.

An evaluation follows every third step. The result is the digest of all weights after `steps` steps.
"""

import hashlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset, TensorDataset

import taskd
from tests.e2e.scripts.points import FOLDER, PLAN, note, rank, reach

HOW, STEPS = PLAN["how"], PLAN["steps"]


def imported(path: Path) -> Any:
    """Return a module of the user's, read from its file."""
    spec = importlib.util.spec_from_file_location("of_the_user", path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules["of_the_user"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Gained(Dataset[Any]):
    """Rows of another dataset, each multiplied by a number."""

    def __init__(self, rows: Any, gain: float) -> None:
        self.rows, self.gain = rows, gain

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        x, y = self.rows[index]
        return x * self.gain, y


dist.init_process_group("gloo")
torch.manual_seed(7 + rank())
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
model = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
data = torch.randn(256, 8, generator=torch.Generator().manual_seed(1))
dataset: Any = TensorDataset(data, data.sum(1, keepdim=True))
again = PLAN.get("again") or (FOLDER / f"made-{rank()}").exists()
note(f"made-{rank()}", "made")  # an unseeded value is another one each time
if HOW == "split":
    dataset = Subset(dataset, [*range(256)][:: -1 if again else 1])
if HOW == "gain":
    dataset = Gained(dataset, 0.5 if again else 1.0)
loader = DataLoader(dataset, batch_size=8, sampler=DistributedSampler(dataset, shuffle=False))
shadow = [parameter.detach().clone() for parameter in net.parameters()]
state = taskd.TrainState(model=model, optimizer=optimizer, loader=loader)
drawn: list[torch.Tensor] = []


def copy(tensors: list[torch.Tensor]) -> None:
    for parameter, tensor in zip(net.parameters(), tensors, strict=True):
        parameter.data.copy_(tensor)


def evaluate() -> None:
    trained = [parameter.detach().clone() for parameter in net.parameters()]
    if HOW == "swap":
        copy(shadow)
    if HOW == "draws" and not drawn:
        drawn.append(torch.rand(3))
    net.eval()
    with torch.no_grad():
        total = net(data).sum()
    reach(state.step, "evaluation")
    dist.all_reduce(total)
    net.train()
    if HOW == "swap":
        copy(trained)


@taskd.resilient(state)
def train() -> None:
    scale = imported(Path(PLAN["module"])).SCALE if HOW == "edited" else 1.0
    while state.step < STEPS:
        for x, y in loader:
            reach(state.step, "begin")
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x) * scale, y)
            reach(state.step, "forward")
            loss.backward()
            optimizer.step()
            state.commit()
            if state.step % 3 == 0:
                evaluate()
            if state.step >= STEPS:
                return


if HOW == "edited":
    imported(Path(PLAN["module"]))
train()
found = hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in net.parameters())).hexdigest()
note(f"result-{rank()}", json.dumps({"weights": found, "step": state.step}))
