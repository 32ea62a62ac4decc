"""Models, loaders and helpers around the training functions of `shapes_found` and `shapes_exact`."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, Sampler, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from taskd.adaptors.training.state import TrainState


class Bins(Sampler[Any]):
    """Rows in bins, in an order of their own."""

    def __init__(self) -> None:
        self.bins = [[row] for row in range(37)]

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.bins)

    def __len__(self) -> int:
        return len(self.bins)


EPOCHS, K = 3, 2
FOUND: Final[dict[str, tuple[Callable[[], None], tuple[str, ...]]]] = {}
"""Training functions with the names that are found in each; none if the function is exact."""

_rows = TensorDataset(torch.zeros(37, 4), torch.zeros(37, dtype=torch.long))
model: Any = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler: Any = torch.optim.lr_scheduler.StepLR(optimizer, 1)
sampler: DistributedSampler[Any] = DistributedSampler(_rows, num_replicas=1, rank=0)
loader: Any = DataLoader(_rows, batch_size=4, sampler=sampler)
bins = Bins()
binned: Any = DataLoader(_rows, batch_sampler=bins)
stateful: Any = StatefulDataLoader(_rows, batch_size=4)
state = TrainState(
    model=model, optimizer=optimizer, scheduler=scheduler, loader=loader, binned=binned, stateful=stateful, seed=1
)
held_out: Any = DataLoader(_rows, batch_size=4)
writer: Any = None


def finds(*names: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def note(function: Callable[[], None]) -> Callable[[], None]:
        FOUND[function.__qualname__] = function, names
        return function

    return note


exact = finds()


def learn(x: Any, y: Any) -> Any:
    """Make a step, without its commit."""
    optimizer.zero_grad()
    loss = cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


def evaluate() -> float:
    model.eval()
    total = 0.0
    with torch.no_grad():
        for x, y in held_out:
            total += cross_entropy(model(x), y).item()
    model.train()
    return total / len(held_out)


def bar_of(batches: Any) -> Any:
    """Return the batches, as a progress bar does."""
    return batches
