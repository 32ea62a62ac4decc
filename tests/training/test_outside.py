"""What a training function changes of its script is told as it is entered."""

import functools
from collections.abc import Callable

import pytest

from taskd.adaptors.training.outside import tell_outside

best = 1.0
patience = 0
TABLE = {"steps": 0}


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
def test_it_is_told_once_with_its_line(
    function: Callable[[], None], line: str, more: str, caplog: pytest.LogCaptureFixture
) -> None:
    tell_outside(function)
    (record,) = caplog.records
    assert record.getMessage().startswith(f"the training function changes 'best' ({line}){more}, a variable of")


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
    tell_outside(train)
    (record,) = caplog.records
    assert f"'count' ({line_of(train, 8)}), a variable" in record.getMessage()


def test_what_is_its_own_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    def train() -> None:
        total = 0.0
        for number in range(3):
            total += number
        print(total, TABLE, functools.reduce)

    tell_outside(train)
    tell_outside(len)
    tell_outside(changes_a_global, tells=False)
    assert not caplog.records
