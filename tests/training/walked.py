"""Training for the tests of a walk, and objects that their scripts keep beside the state."""

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, Sampler

import taskd
from taskd.adaptors.training.limits.refusals import Refusals
from taskd.adaptors.training.proof.looks import EarlyLooks
from taskd.adaptors.training.proof.reentry import ProofOutlook
from taskd.adaptors.training.state import TrainState

STEPS = 14


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x).relu())


class Training:
    """Model, optimizer and state that every script here trains with."""

    def __init__(self, *, scheduled: bool = False, **parts: Any) -> None:
        torch.manual_seed(0)
        self.network = Network()
        self.optimizer: Any = torch.optim.SGD(self.network.parameters(), lr=0.1, momentum=0.9)
        given = parts.pop("optimizer", None)
        if given is not None:
            self.optimizer = given(self.network.parameters())
        self.state = TrainState(model=self.network, optimizer=self.optimizer, seed=1, **parts)

    def found(
        self, train: Callable[[], object], proof: ProofOutlook = ProofOutlook.NONE, *, joins: bool = False
    ) -> list[str]:
        """Run the function to its end and return the reports. `joins`: this process takes another's place."""
        told: list[str] = []

        def refuse(*, no_rebuild: str, no_newcomer: str, anew: str) -> None:
            told[:] = filter(None, [*no_rebuild.split("; "), no_newcomer])

        recovery = self.state._recovery
        self.refusals = Refusals(refuse, tells=True)
        self.looks = EarlyLooks(self.refusals, recovery, lambda: None, lambda: proof, joins=joins)
        recovery.on_commit = lambda _step: self.looks.committed()
        recovery.parts.taken.enter(train)
        if not joins:
            self.looks.enter()
        taskd.resilient(self.state)(train)()
        return told


class Average:
    """Average of the weights."""

    def __init__(self, module: nn.Module) -> None:
        self.shadow = {name: value.detach().clone() for name, value in module.named_parameters()}

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        for name, value in module.named_parameters():
            self.shadow[name].mul_(0.9).add_(value, alpha=0.1)


class Saved(Average):
    """The same average as a part of the state."""

    def state_dict(self) -> dict[str, Any]:
        return {name: value.clone() for name, value in self.shadow.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.shadow = state


class Mixing:
    """Callback that mixes the weights into a second model."""

    def __init__(self, reference: nn.Module) -> None:
        self.reference = reference

    @torch.no_grad()
    def on_step_end(self, step: int, policy: nn.Module) -> None:
        if step % 5 == 0:
            for old, new in zip(self.reference.parameters(), policy.parameters(), strict=True):
                old.data.mul_(0.5).add_(new.data, alpha=0.5)


class Progress:
    """Count of samples seen, which determines the amount of noise."""

    def __init__(self) -> None:
        self.seen = 0

    def noise(self) -> float:
        return max(0.0, 1 - self.seen / 4000)


class ByLosses:
    """Sampler of noise by recent losses."""

    def __init__(self) -> None:
        self._losses = np.zeros(4)
        self._shown = 0

    def _weights(self) -> Any:
        return np.exp(self._losses)

    def sample(self) -> float:
        return float(self._weights()[0])

    def update(self, step: int, loss: float) -> None:
        self._losses[step % 4] += loss
        self._shown += 1


class Pace:
    """Weight of a loss by the first loss.

    Values that depend on a shape alone, come from a file or existed before the first step are the same in any process.
    """

    def __init__(self) -> None:
        self.first: torch.Tensor | None = None
        self.given: torch.Tensor | None = torch.ones(2)
        self.table: torch.Tensor | None = None
        self.causal: torch.Tensor | None = None
        self.mask: torch.Tensor | None = None
        self.shown: torch.Tensor | None = None

    def __call__(self, loss: torch.Tensor) -> torch.Tensor:
        if self.first is None:
            self.first = loss.detach().clone()
        if self.shown is None:
            self.shown = loss.detach().clone()
        if self.mask is None:
            self.mask = torch.ones(loss.shape, device=loss.device)
        if self.given is None:
            self.given = loss.detach().clone()
        if self.table is None:
            table = torch.arange(4.0)[: len(loss)]
            self.table = table + 1
        length = loss.shape[0]
        if self.causal is None:
            self.causal = torch.tril(torch.ones(length, length))[-1]
        return (loss / self.first * self.mask * self.given * self.table * self.causal).sum()

    def __str__(self) -> str:
        return f"began at {self.shown}"


class Loop:
    """Loop as a class: the state that moves the training lies two methods deep."""

    def __init__(self, training: "Training") -> None:
        self.training, self.network = training, training.network
        self.sampler = ByLosses()
        self.decay = 0
        self.logged = 0.0

    def run_step(self, step: int) -> None:
        loss = self._forward_backward(step)
        self._anneal()
        self.training.optimizer.step()
        self.logged += loss

    def _forward_backward(self, step: int) -> float:
        self.training.optimizer.zero_grad()
        loss = self.network(torch.randn(8, 4) * self.sampler.sample()).square().mean()
        self.sampler.update(step, loss.item())
        loss.backward()
        return loss.item()

    def _anneal(self) -> None:
        self.decay += 1
        for group in self.training.optimizer.param_groups:
            group["lr"] = 0.1 / self.decay


class Meter:
    """Running mean for the log."""

    def __init__(self) -> None:
        self.sum, self.count, self.avg, self.last_s = 0.0, 0, 0.0, 0.0
        self.total = torch.zeros(())

    def update(self, value: float, n: int = 1) -> None:
        self.sum += value * n
        self.count += n
        self.avg = self.sum / self.count
        self.total += value
        self.last_s = time.time()

    def __str__(self) -> str:
        return f"{self.avg:.3f} after {self.count}"


class Stopper:
    """Early stopping."""

    def __init__(self, patience: int) -> None:
        self.patience, self.counter, self.lowest = patience, 0, 0.0

    def __call__(self, loss: float) -> bool:
        if loss < self.lowest:
            self.lowest, self.counter = loss, 0
        else:
            self.counter += 1
        return self.counter >= self.patience


class Around(torch.optim.Optimizer):
    """Optimizer around another one, whose momentum it does not save."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.base = torch.optim.SGD(self.param_groups, lr=0.1, momentum=0.9)
        self.param_groups = self.base.param_groups

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.base.step(closure)


def step_of(training: Training, *, noise: float = 0.0, generator: torch.Generator | None = None) -> float:
    rows = torch.randn(8, 4, generator=torch.Generator().manual_seed(training.state.step))
    rows = rows + noise * torch.randn(8, 4, generator=generator)
    training.optimizer.zero_grad()
    loss = training.network(rows).square().mean()
    loss.backward()
    training.optimizer.step()
    return float(loss.detach())


def line_in(function: Callable[..., object], further: int) -> str:
    code = function.__code__
    return f"{code.co_filename}:{code.co_firstlineno + further}"


class Counting(Sampler[int]):
    """Sampler that shuffles by the number of its own passes."""

    def __init__(self) -> None:
        self.passes = 0

    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(8, generator=torch.Generator().manual_seed(self.passes))
        self.passes += 1
        return iter(order.tolist())


class Bins(Sampler[Any]):
    """Bins of rows. Each pass goes over the first four."""

    def __init__(self, bins: int) -> None:
        self.bins = [[2 * at, 2 * at + 1] for at in range(bins)]

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[Any]:
        return iter(self.bins[:4])


class MadeOfThemselves(Bins):
    """Bins that each epoch makes from those of the last one."""

    def set_epoch(self, epoch: int) -> None:
        order = torch.randperm(len(self.bins), generator=torch.Generator().manual_seed(epoch))
        self.bins = [self.bins[number] for number in order.tolist()]


class ShuffledInPlace(Bins):
    """The same, in place."""

    def set_epoch(self, epoch: int) -> None:
        random.Random(epoch).shuffle(self.bins)


class SortedFirst(Bins):
    """Bins that each epoch makes from the same order."""

    def set_epoch(self, epoch: int) -> None:
        self.bins.sort()
        random.Random(epoch).shuffle(self.bins)


class MadeAnew(Bins):
    """Bins that each epoch makes from its number."""

    def set_epoch(self, epoch: int) -> None:
        self.bins = [[2 * at, 2 * at + 1] for at in range(len(self.bins))]
        random.Random(epoch).shuffle(self.bins)


class Stream(IterableDataset[Any]):
    """Stream that shuffles with one generator for all passes."""

    def __init__(self) -> None:
        self.rng, self.epoch = random.Random(5), 0

    def __iter__(self) -> Iterator[Any]:
        self.epoch += 1
        numbers = list(range(8))
        self.rng.shuffle(numbers)
        return iter([torch.full((4,), float(one)) for one in numbers])


class Rows(Dataset[Any]):
    """Dataset that counts its requests, for the log."""

    def __init__(self) -> None:
        self.asked = 0

    def set_epoch(self, epoch: int) -> None:
        self.asked = epoch

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        self.asked += 1
        return torch.full((4,), float(index))


class Wrapper:
    """Wrapper that sets the sampler's epoch to the number of its own passes."""

    def __init__(self, loader: Any) -> None:
        self.loader, self.calls = loader, 0

    def __iter__(self) -> Iterator[Any]:
        self.loader.sampler.set_epoch(self.calls)
        self.calls += 1
        yield from self.loader


class WrapperOfData(Wrapper):
    """Wrapper that sets the dataset's epoch, too."""

    def __iter__(self) -> Iterator[Any]:
        self.loader.sampler.set_epoch(self.calls)
        self.loader.dataset.set_epoch(self.calls)
        self.calls += 1
        yield from self.loader


def over_epochs(one: Training, batches: Any) -> Callable[[], None]:
    def train() -> None:
        for _ in one.state.epochs(2):
            for rows in batches:
                one.optimizer.zero_grad()
                loss = one.network(rows).square().mean()
                loss.backward()
                one.optimizer.step()
                one.state.commit()

    return train


def over_bins(one: Training, bins: Any, batches: Any) -> Callable[[], None]:
    def train() -> None:
        for epoch in one.state.epochs(2):
            if epoch:
                bins.set_epoch(epoch)
            for rows in batches:
                one.optimizer.zero_grad()
                loss = one.network(rows).square().mean()
                loss.backward()
                one.optimizer.step()
                one.state.commit()

    return train


class Split(torch.optim.Optimizer):
    """Optimizer with momentum for every other parameter, like one rank of two."""

    def __init__(self, parameters: Any, rank: int) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.rank = rank

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for number, parameter in enumerate(self.param_groups[0]["params"]):
            if number % 2 == self.rank:
                self.state[parameter]["momentum"] = torch.ones_like(parameter)
