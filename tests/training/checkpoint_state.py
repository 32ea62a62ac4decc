"""Training states for the tests of checkpoints, and the compared content: every tensor and setting, bit for bit."""

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from taskd.adaptors.training.state import TrainState


class Net(nn.Module):
    """Tied weights, another memory order, several types, an empty tensor, running statistics, a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight
        self.norm = nn.BatchNorm1d(16)
        self.picture = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.short = nn.Parameter(torch.randn(7, dtype=torch.bfloat16))
        self.frozen = nn.Parameter(torch.randn(3), requires_grad=False)
        self.register_buffer("flags", torch.rand(9) > 0.5)
        self.register_buffer("nothing", torch.empty(0, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.embed(x))
        picture = self.picture(torch.ones(1, 3, 5, 5)).square().mean()
        return self.head(y).square().mean() + picture + self.short.float().square().mean()


def make(seed: int, rank: int = 0, size: int = 1, wrapped: bool = False) -> TrainState:
    """Return an untrained state. Everything in it depends on the seed."""
    torch.manual_seed(seed)
    net: nn.Module = Net()
    net = DistributedDataParallel(net) if wrapped else net
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01 * (seed + 1), betas=(0.8, 0.99))
    return TrainState(
        model=net,
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2, 2, 50 + seed], gamma=0.5),
        sampler=DistributedSampler(range(64), num_replicas=size, rank=rank),  # type: ignore[arg-type]
    )


def train(state: TrainState, steps: int) -> None:
    state._recovery.begin()
    for _ in range(steps):
        state.sampler.set_epoch(state.sampler.epoch + 1)
        state.optimizer.zero_grad()
        state.model(torch.randint(50, (8,))).backward()
        state.optimizer.step()
        state.scheduler.step()
        state.commit()


def contents(state: TrainState) -> dict[str, Any]:
    """Return copies of all tensors and settings by name, without DDP's prefix: the same whether wrapped or not."""
    found: dict[str, Any] = {}
    for name, value in state.model.state_dict().items():
        found[name.removeprefix("module.")] = value
    for name, parameter in state.model.named_parameters():
        for key, value in state.optimizer.state.get(parameter, {}).items():
            found[f"{name.removeprefix('module.')}.{key}"] = value
    settings = state.optimizer.state_dict()["param_groups"]
    return {
        "step": state.step,
        "tensors": {name: bits(value) for name, value in found.items()},
        "settings": settings,
        "scheduler": state.scheduler.state_dict(),
    }


def bits(tensor: torch.Tensor) -> tuple[Any, ...]:
    plain = tensor.detach().contiguous().reshape(-1)
    return str(tensor.dtype), tuple(tensor.shape), plain.view(torch.uint8).clone().numpy().tobytes()


def draws() -> list[float]:
    return torch.rand(3).tolist()
