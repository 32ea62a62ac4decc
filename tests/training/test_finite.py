"""Losses that are reported, and the time at which they are read."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from taskd.adaptors.training.trust.finite import MOST_UNDER_WAY, Losses
from taskd.errors import ConfigError
from tests.training.test_state import make

NAN, INF = float("nan"), float("inf")


class Device:
    """Accelerator that computes on request. Its tensors are on `meta`, where nothing can be read."""

    def __init__(self, *values: float) -> None:
        self._values = iter(values)
        self.done = 0
        self.set_off = 0

    def copy(self, _loss: torch.Tensor) -> Any:
        device, number, value = self, self.set_off, next(self._values)
        self.set_off += 1

        class Copy:
            def arrived(self) -> bool:
                return number < device.done

            def value(self) -> float:
                assert self.arrived(), "somebody waits for the device"
                return value

        return Copy()


@pytest.fixture
def told() -> list[tuple[int, str]]:
    return []


@pytest.fixture
def losses(told: list[tuple[int, str]]) -> Losses:
    return Losses(lambda step, value: told.append((step, value)))


@pytest.mark.parametrize("kind", [float, torch.tensor, np.float32, lambda x: torch.full((1, 1), x, requires_grad=True)])
def test_the_first_of_each_streak_is_told(
    losses: Losses, told: list[tuple[int, str]], kind: Callable[[float], Any]
) -> None:
    for step, value in enumerate([1.0, NAN, NAN, INF, 0.5, -INF, NAN], start=1):
        losses.look(kind(value), step)
    assert told == [(2, "nan"), (6, "-inf")]


def test_a_device_is_never_waited_for(told: list[tuple[int, str]]) -> None:
    device = Device(1.0, NAN, NAN, 1.0, INF)
    losses, loss = Losses(lambda step, value: told.append((step, value)), device.copy), torch.empty((), device="meta")
    losses.look(loss, 1)
    losses.look(loss, 2)
    assert told == []
    device.done = 2
    losses.look(loss, 3)
    assert told == [(2, "nan")], "one commit later"
    losses.look(loss, 4)
    losses.look(loss, 5)
    device.done = 5
    losses.look(1.0, 6)
    assert told == [(2, "nan"), (5, "inf")]


def test_a_device_that_falls_behind_slows_nothing(told: list[tuple[int, str]]) -> None:
    device = Device(*[1.0] * MOST_UNDER_WAY, NAN)
    losses = Losses(lambda step, value: told.append((step, value)), device.copy)
    for step in range(100):
        losses.look(torch.empty((), device="meta"), step)
    assert device.set_off == MOST_UNDER_WAY
    device.done = 100
    losses.look(torch.empty((), device="meta"), 100)
    losses.look(1.0, 101)
    assert told == [(100, "nan")]


@pytest.mark.parametrize(("loss", "message"), [("x", "got str"), (torch.ones(2), "of shape"), ([1], "got list")])
def test_what_is_no_number_is_refused(losses: Losses, loss: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        losses.look(loss, 1)


def test_a_state_tells_with_the_step_that_is_committed() -> None:
    told: list[tuple[int, str]] = []
    state = make()
    state._recovery.losses.tell = lambda step, value: told.append((step, value))
    for loss in (1.0, torch.tensor(NAN), None, NAN):
        state.commit(loss)
    assert (state.step, told) == (4, [(2, "nan")])
    with state._recovery.restoring(1):
        pass
    state.commit(loss=NAN)
    assert told == [(2, "nan"), (2, "nan")], "a recovery begins anew"
