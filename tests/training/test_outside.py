"""Changes that a training function makes to its script's variables are reported as it is entered."""

import functools
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler

from taskd.adaptors.training.script.outside import tell_outside

best = 1.0
patience = 0
TABLE = {"steps": 0}
NUMBERS: Any = range(6)


def changes_a_global() -> None:
    global best  # noqa: PLW0603 - as scripts do
    best = min(best, 0.5)


def calls_what_does() -> None:
    for _ in range(3):
        changes_a_global()


def has_it_inside() -> None:
    def evaluate() -> None:
        global best, patience
        best, patience = 0.0, patience + 1

    evaluate()


class Trainer:
    def train(self) -> None:
        changes_a_global()


def line_of(function: Callable[[], None], further: int) -> str:
    return f"{__file__}:{function.__code__.co_firstlineno + further}"


@pytest.mark.parametrize(
    ("function", "line", "more"),
    [
        (changes_a_global, line_of(changes_a_global, 2), ""),
        (calls_what_does, line_of(changes_a_global, 2), ""),
        (has_it_inside, line_of(has_it_inside, 3), " and 1 more"),
        (Trainer().train, line_of(changes_a_global, 2), ""),
        (functools.partial(calls_what_does), line_of(changes_a_global, 2), ""),
    ],
    ids=["itself", "calls", "inside", "method", "partial"],
)
def test_what_it_sets_is_told_once_with_its_line(
    function: Callable[[], None], line: str, more: str, caplog: pytest.LogCaptureFixture
) -> None:
    tell_outside(function, {})
    (record,) = caplog.records
    assert record.getMessage().startswith(f"the training function sets 'best' ({line}){more} outside of itself")


def test_a_variable_of_a_function_around_it(caplog: pytest.LogCaptureFixture) -> None:
    count = 0

    def train() -> None:
        nonlocal count
        own = 0

        def inner() -> None:
            nonlocal own
            own += 1

        count += 1
        inner()

    train()
    tell_outside(train, {})
    (record,) = caplog.records
    assert f"sets 'count' ({line_of(train, 8)}) outside" in record.getMessage()


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


LOADER: Any = DataLoader(NUMBERS, sampler=RandomSampler(NUMBERS, generator=torch.Generator()))


@pytest.mark.parametrize(
    "made",
    [
        iter([1, 2]),
        itertools.cycle([1]),
        endless([1]),
        endless(LOADER),
        torch.Generator(),
        random.Random(1),
        np.random.default_rng(1),
        np.random.RandomState(1),
    ],
    ids=lambda made: type(made).__name__,
)
def test_what_it_goes_on_with_is_told(made: Any, caplog: pytest.LogCaptureFixture) -> None:
    def train() -> None:
        print(made)

    tell_outside(train, {})
    (record,) = caplog.records
    assert f"goes on with 'made' ({line_of(train, 1)}), an iterator" in record.getMessage()


def test_what_a_loader_of_the_state_has_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    batches, iterator, generator = endless(LOADER), iter(LOADER), LOADER.sampler.generator

    def train() -> None:
        print(batches, iterator, generator)

    tell_outside(train, {"loader": LOADER})
    assert not caplog.records


def test_a_generator_that_it_seeds_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    own = torch.Generator()

    def train() -> None:
        own.manual_seed(3)
        print(torch.rand(1, generator=own))

    tell_outside(train, {})
    assert not caplog.records


def test_what_is_its_own_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    with open(__file__) as file:

        def train() -> None:
            total = 0.0
            for number in iter([1, 2]):
                total += number
            print(total, TABLE, functools.reduce, file, random.SystemRandom())

        tell_outside(train, {})
    tell_outside(len, {})
    tell_outside(changes_a_global, {}, tells=False)
    assert not caplog.records


def test_one_that_has_not_been_made_yet(caplog: pytest.LogCaptureFixture) -> None:
    def train() -> None:
        print(later)

    tell_outside(train, {})
    later = iter([1])
    assert next(later)
    assert not caplog.records
