"""A new process's set-up must equal its predecessor's: the comparison of data and text, and its cost."""

import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from taskd.adaptors.training.parts.parts import Parts
from taskd.adaptors.training.proof.setup_facts import expect_same_setup, setup_facts
from taskd.adaptors.training.state import TrainState

N = 1000


class Listed(Dataset[Any]):
    """Dataset with a list, an array, a cache and a counter."""

    def __init__(self, names: list[str], table: Any = None) -> None:
        self.names, self.table, self.calls = names, table, 0
        self.cache: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> str:
        raise AssertionError("no item is fetched")


class Stream(IterableDataset[Any]):
    """Dataset without a length, which raises an error."""

    def __len__(self) -> int:
        raise AssertionError("it has none")

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("no item is fetched")


def parts_with(dataset: Any) -> Parts:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return TrainState(model=model, optimizer=optimizer, loader=DataLoader(dataset, batch_size=4))._recovery.parts


def facts(dataset: Any) -> dict[str, str]:
    return setup_facts(parts_with(dataset))


def seeded(seed: int) -> torch.Tensor:
    return torch.randn(N, 3, generator=torch.Generator().manual_seed(seed))


def names(seed: int, count: int = N) -> list[str]:
    found = [f"{number}.png" for number in range(count)]
    random.Random(seed).shuffle(found)
    return found


MADE: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "tensors": (lambda: TensorDataset(seeded(0)), lambda: TensorDataset(seeded(1))),
    "a split": (
        lambda: Subset(TensorDataset(seeded(0)), [*range(0, N, 2)]),
        lambda: Subset(TensorDataset(seeded(0)), [*range(1, N, 2)]),
    ),
    "tensors below a split": (
        lambda: Subset(TensorDataset(seeded(0)), [*range(N)]),
        lambda: Subset(TensorDataset(seeded(1)), [*range(N)]),
    ),
    "files": (lambda: Listed(names(0)), lambda: Listed(names(1))),
    "one file more": (lambda: Listed(names(0)), lambda: Listed(names(0, N + 1))),
    "an array": (
        lambda: Listed(names(0), np.arange(N).reshape(10, 100).T),
        lambda: Listed(names(0), np.arange(1, N + 1).reshape(10, 100).T),
    ),
}


@pytest.mark.parametrize("what", MADE)
def test_another_dataset_is_named(what: str) -> None:
    first, other = MADE[what]

    known = facts(first())
    assert known == facts(first())
    different = [name for name, text in facts(other()).items() if known[name] != text]
    assert different
    assert all("'loader'" in name for name in different)


def test_the_error_names_both() -> None:
    parts = parts_with(Listed(names(0)))
    known = setup_facts(parts)
    expect_same_setup(parts, known)
    expect_same_setup(parts, {})
    key = "the length of the dataset of 'loader'"
    with pytest.raises(RuntimeError, match=r"the length of the dataset of 'loader' was 999, and is 1000.*start anew"):
        expect_same_setup(parts, known | {key: "999"})


def test_a_text_that_was_edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "of_the_user.py"
    file.write_text("rate = 1")
    module = ModuleType("of_the_user")
    module.__file__ = str(file)
    monkeypatch.setitem(sys.modules, "of_the_user", module)
    known = facts(Listed(names(0)))
    file.write_text("rate = 2")
    assert facts(Listed(names(0)))[f"the text of {file}"] != known[f"the text of {file}"]


def test_what_a_dataset_counts_and_caches_is_not_compared() -> None:
    dataset = Listed(names(0))
    known = facts(dataset)
    dataset.calls, dataset.cache = 7, {1: torch.ones(3)}
    assert facts(dataset) == known


def test_a_stream_has_no_length() -> None:
    assert "the length of the dataset of 'loader'" not in facts(Stream())


def test_a_large_set_up_takes_a_millisecond_or_so() -> None:
    parts = parts_with(Listed(names(0, 100_000), np.zeros((1000, 1000))))
    setup_facts(parts)
    begun_s = time.process_time()
    for _ in range(10):
        setup_facts(parts)
    assert (time.process_time() - begun_s) / 10 < 0.02
