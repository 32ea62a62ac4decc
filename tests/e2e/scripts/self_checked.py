"""Small trainings that a self-check has to judge: `how` in the plan names the shape.

The result is the digest of all weights after `steps` steps.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import taskd
from tests.e2e.scripts.points import FOLDER, PLAN, note, rank, reach

HOW, STEPS = PLAN["how"], PLAN["steps"]
calls: list[int] = []
noise = torch.Generator().manual_seed(3)


class Progress:
    def __init__(self) -> None:
        self.seen = 0


progress = Progress()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


dist.init_process_group("gloo")
torch.manual_seed(7 + rank())
net = Net()
model = DistributedDataParallel(net)
optimizer: torch.optim.Optimizer
if HOW == "lbfgs":
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=2)
else:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
scaler = torch.amp.GradScaler(
    "cpu", init_scale=2.0 ** (127 if HOW == "overflows" else 16), enabled=HOW in ("scaler", "overflows")
)
data = torch.randn(256, 8, generator=torch.Generator().manual_seed(1))
dataset = TensorDataset(data, data.sum(1, keepdim=True))
loader = DataLoader(dataset, batch_size=8, sampler=DistributedSampler(dataset))
state = taskd.TrainState(
    model=model,
    optimizer=optimizer,
    scheduler=scheduler,
    loader=loader,
    scaler=scaler,
    backup_every=PLAN.get("backup_every"),
)


def mixed(x: torch.Tensor) -> torch.Tensor:
    """Change the value in a way that the state does not hold."""
    if HOW == "counter":
        calls.append(1)
        return x * (1 + 0.01 * len(calls))
    if HOW == "unseeded":
        own = torch.Generator()
        own.seed()
        return x + 1e-3 * torch.rand(x.shape, generator=own)
    return x


def endless() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    while True:
        yield from loader


def fetched_ahead() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    source = endless()
    ready = next(source)
    while True:
        following = next(source)
        yield ready
        ready = following


class Prefetcher:
    """Fetches a batch ahead, too, without a trace in the text of the training function."""

    def __init__(self) -> None:
        self.source = endless()
        self.ready = next(self.source)

    def __iter__(self) -> "Prefetcher":
        return self

    def __next__(self) -> tuple[torch.Tensor, torch.Tensor]:
        batch, self.ready = self.ready, next(self.source)
        return batch


batches = {"ahead": fetched_ahead, "prefetcher": Prefetcher}.get(HOW, endless)


def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), y)


def step(x: torch.Tensor, y: torch.Tensor) -> None:
    optimizer.zero_grad()
    if HOW in ("closure", "lbfgs"):

        def closure() -> float:
            optimizer.zero_grad()
            loss = loss_of(x, y)
            loss.backward()
            everybodys = loss.detach()
            dist.all_reduce(everybodys)
            return float(everybodys)

        optimizer.step(closure)
        return
    if HOW == "number":
        progress.seen += len(x)
        x = x * (1 + 0.001 * progress.seen)
    if HOW == "generator":
        x = x + 0.1 * torch.randn(x.shape, generator=noise)
    loss = loss_of(mixed(x), y)
    if scaler.is_enabled():
        scaler.scale(loss * (4.0 if HOW == "overflows" else 1.0)).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        return
    loss.backward()
    skips = HOW.startswith("never") or (HOW == "skips" and rank() == 1 and state.step == 2)
    if not skips:
        optimizer.step()


@taskd.resilient(state)
def train() -> None:
    print(f"rank {rank()} enters at {state.step}", flush=True)
    if HOW == "raises" and (FOLDER / f"entered-{rank()}").exists() and state.step == 2:
        raise FileExistsError("the run's folder is there already")
    (FOLDER / f"entered-{rank()}").touch()
    if HOW == "empties":
        (FOLDER / f"log-{rank()}").write_text("begins")
    for x, y in batches():
        reach(state.step, "begin")
        if HOW == "swallows":
            try:
                step(x, y)
            except BaseException as error:  # noqa: BLE001 - a script may do so
                print(f"rank {rank()} swallows {type(error).__name__}", flush=True)
        else:
            step(x, y)
        scheduler.step()
        state.commit()
        if state.step >= STEPS:
            return


train()


def digest(tensors: Iterable[torch.Tensor]) -> str:
    return hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in tensors)).hexdigest()


found = {"weights": digest(net.parameters()), "buffers": digest(net.buffers()), "step": state.step}
note(f"result-{rank()}", json.dumps(found))
