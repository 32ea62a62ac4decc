"""A resilient function inside another, in a script that runs alone."""

import pytest
import torch

import taskd
from taskd.adaptors.faults import last_words
from taskd.errors import ConfigError


def make_state() -> taskd.TrainState:
    model = torch.nn.Linear(2, 1)
    return taskd.TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


def test_a_resilient_function_inside_another_is_refused() -> None:
    inner = taskd.resilient(make_state())(lambda: 1)

    @taskd.resilient(make_state())
    def outer() -> int:
        return inner()

    with pytest.raises(
        ConfigError, match=r"<lambda>\(\) \(.*test_nested.py:\d+\) called while .*outer\(\) \("
    ) as raised:
        outer()
    assert last_words(raised.value)[1] == "fatal", "no restart mends it"
    assert inner() == 1, "one after the other"


def test_a_function_that_has_raised_can_be_called_again() -> None:
    left = [ValueError("once")]

    @taskd.resilient(make_state())
    def train() -> str:
        if left:
            raise left.pop()
        return "done"

    with pytest.raises(ValueError, match="once"):
        train()
    assert train() == "done"
