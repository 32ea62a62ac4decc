"""Parts that are equal on all ranks, and parts of each rank's own: known by type or by statement, never by name."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, DistributedSampler, Sampler
from torchdata.stateful_dataloader import StatefulDataLoader

from taskd.adaptors.training.parts.kinds import sort
from taskd.adaptors.training.state import TrainState
from taskd.errors import ConfigError

NUMBERS: Any = range(4)
NOTHING: Any = ()
MODEL = nn.Linear(2, 2)
OPTIMIZER = torch.optim.SGD(MODEL.parameters(), lr=0.1)


class Stream:
    """Source of the user's own, read by a method."""

    def next_batch(self) -> int:
        return 0

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class Order(Sampler[int], Stream):
    def __iter__(self) -> Iterator[int]:
        return iter(NUMBERS)


class Warmup(Stream):
    """Scheduler like timm's and Megatron's, which are not torch's."""

    def __init__(self) -> None:
        self.optimizer = OPTIMIZER


class AroundScheduler(Stream):
    """Scheduler like accelerate's."""

    def __init__(self) -> None:
        self.scheduler = StepLR(OPTIMIZER, 1)


# Made on request: `forgotten` finds all objects of the process.
EQUAL: dict[str, Callable[[], Any]] = {
    "model": lambda: MODEL,
    "average": lambda: AveragedModel(MODEL),
    "optimizer": lambda: OPTIMIZER,
    "scheduler": lambda: StepLR(OPTIMIZER, 1),
    "plateau": lambda: ReduceLROnPlateau(OPTIMIZER),
    "scaler": lambda: torch.amp.GradScaler("cpu"),
    "scheduler of timm's": Warmup,
    "scheduler of accelerate's": AroundScheduler,
}
OWN: dict[str, Callable[[], Any]] = {
    "loader": lambda: DataLoader(NUMBERS),
    "loader of torchdata's": lambda: StatefulDataLoader(NUMBERS),
    "sampler": lambda: DistributedSampler(NUMBERS, num_replicas=1, rank=0),
    "own sampler": Order,
}


@pytest.mark.parametrize("kind", EQUAL)
@pytest.mark.parametrize("name", ["model", "loader", "train_sampler"])
def test_what_is_equal_on_all_ranks_is_known_by_its_type(kind: str, name: str) -> None:
    part = EQUAL[kind]()
    assert sort({name: part}).positions == frozenset()
    assert sort({}, replicated={name: part}).positions == frozenset()
    with pytest.raises(ConfigError, match=rf"'data' has '{name}', a \w+, which is equal on all ranks by its type"):
        sort({}, data={name: part})


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize("name", ["loader", "model", "ema"])
def test_what_is_each_ranks_own_is_known_by_its_type(kind: str, name: str) -> None:
    part = OWN[kind]()
    assert sort({name: part}).positions == {name}
    assert sort({}, data={name: part}).positions == {name}
    with pytest.raises(ConfigError, match=rf"'replicated' has '{name}', a \w+, which is each rank's own"):
        sort({}, replicated={name: part})


@pytest.mark.parametrize("name", ["stream", "loader", "sampler", "train_loader", "ema"])
def test_a_part_whose_kind_is_not_known_is_refused(name: str) -> None:
    """For any name, the error states what was found and expected, and both remedies."""
    with pytest.raises(ConfigError) as caught:
        TrainState(model=MODEL, optimizer=OPTIMIZER, **{name: Stream()})  # type: ignore[arg-type]
    said = str(caught.value)
    assert f"{name!r} is a Stream, which may be equal on all ranks or each rank's own place in its data" in said
    assert "expected a model, optimizer, scheduler, gradient scaler, DataLoader or Sampler by keyword" in said
    assert f"equal on all ranks pass replicated={{{name!r}: …}}, else data={{{name!r}: …}}" in said
    for remedy in ("replicated", "data"):
        said_so: dict[str, Any] = {remedy: {name: Stream()}}
        state = TrainState(model=MODEL, optimizer=OPTIMIZER, **said_so)
        assert isinstance(getattr(state, name), Stream)
        assert list(state._recovery.parts.positions) == [name] * (remedy == "data")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"model": Stream()}, "two parts by the name 'model'"),
        ({"commit": Stream()}, "uses the name 'commit' itself"),
        ({"_recovery": Stream()}, "uses the name '_recovery' itself"),
        ({"stream": 3}, "'stream' is a int, expected something with state_dict"),
        (DataLoader(NOTHING), r"'data' is or has a DataLoader, expected a dict of parts.*pass data=\{'name': …\}"),
        ({0: Stream()}, "the names 0, expected a dict of parts by names"),
        ({"the stream": Stream()}, "the names 'the stream', expected"),
    ],
)
def test_a_dict_that_is_wrong_is_refused(data: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainState(model=MODEL, optimizer=OPTIMIZER, data=data)


def test_none_is_left_out() -> None:
    assert list(sort({"model": MODEL, "scheduler": None}, {"stream": None}, {"ema": None}).all) == ["model"]
