"""Sees a loss that is NaN or infinite, without a step ever waiting for the device.

Rules:

1. A number, or a tensor in the host's memory, is looked at at once. Of one on an accelerator a copy is set off behind
   the work that computes it, and looked at in a later commit, when the device has come so far.
2. Of a streak the first is told. One that is finite again ends the streak.
3. A device that falls behind by more than `MOST_UNDER_WAY` commits has some of them left out, not the job slowed.
"""

import math
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

import torch

from taskd.errors import ConfigError

MOST_UNDER_WAY: Final = 8
Tell = Callable[[int, str], None]


class Copy(Protocol):
    """A loss on its way to the host."""

    def arrived(self) -> bool:
        """Whether `value` waits for nothing."""
        ...

    def value(self) -> float:
        """The loss."""
        ...


class DeviceCopy:
    """A copy that the device makes when it has computed the loss."""

    def __init__(self, loss: torch.Tensor) -> None:
        self._copy = loss.detach().to("cpu", non_blocking=True)
        device: Any = getattr(torch, loss.device.type, None)
        self._done = device.Event() if hasattr(device, "Event") else None
        if self._done is not None:
            self._done.record(device.current_stream(loss.device))

    def arrived(self) -> bool:
        """Without events on such a device nobody knows, and it is taken to be there one commit later."""
        return self._done is None or bool(self._done.query())

    def value(self) -> float:
        """The loss."""
        return float(self._copy)


class Losses:
    """The losses of one rank. `tell`, if there is one, hears step and value of the first that is not finite."""

    def __init__(self, tell: Tell | None = None, copy: Callable[[torch.Tensor], Copy] = DeviceCopy) -> None:
        self.tell = tell
        self._copy = copy
        self._under_way: deque[tuple[int, Copy]] = deque()
        self._finite = True
        self._seen = False

    @property
    def known_finite(self) -> bool:
        """The newest loss that was seen is finite."""
        return self._seen and self._finite

    def look(self, loss: float | torch.Tensor, step: int) -> None:
        """Step `step` had this loss, one number.

        Raises:
            ConfigError: it is no number, or a tensor of more than one.
        """
        while self._under_way and self._under_way[0][1].arrived():
            then, copy = self._under_way.popleft()
            self._judge(copy.value(), then)
        if not isinstance(loss, torch.Tensor):
            try:
                self._judge(float(loss), step)
            except (TypeError, ValueError) as error:
                raise ConfigError(
                    f"commit(loss=...) got {type(loss).__name__}, expected a number or a tensor with one element"
                ) from error
        elif loss.numel() != 1:
            raise ConfigError(
                f"commit(loss=...) got a tensor of shape {tuple(loss.shape)}, expected one element: its mean, say"
            )
        elif loss.device.type == "cpu":
            self._judge(loss.item(), step)
        elif len(self._under_way) < MOST_UNDER_WAY:
            self._under_way.append((step, self._copy(loss)))

    def forget(self) -> None:
        """The state goes back to an earlier step: what is on its way counts for nothing, a new streak may begin."""
        self._under_way.clear()
        self._finite, self._seen = True, False

    def take(self, *, finite: bool) -> None:
        """The state is a donor's now, whose newest loss was finite, or may not have been."""
        self._seen = finite

    def _judge(self, value: float, step: int) -> None:
        finite = math.isfinite(value)
        if self._finite and not finite and self.tell is not None:
            self.tell(step, repr(value))
        self._finite, self._seen = finite, True
