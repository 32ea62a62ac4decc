"""Detection of a loss that is NaN or infinite, without any step waiting for the device.

Rules:

1. A number, or a tensor in the host's memory, is checked at once. A tensor on an accelerator is copied behind the work
   that computes it. A later commit checks the copy, once it has arrived.
2. The first loss of a streak is reported. A finite loss ends the streak.
3. If a device falls behind by more than `MOST_UNDER_WAY` commits, some losses are left out. The job is not slowed.
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
        """Return whether `value` can be read without waiting."""
        ...

    def value(self) -> float:
        """Return the loss."""
        ...


class DeviceCopy:
    """Copy that the device makes once it has computed the loss."""

    def __init__(self, loss: torch.Tensor) -> None:
        self._copy = loss.detach().to("cpu", non_blocking=True)
        device: Any = getattr(torch, loss.device.type, None)
        self._done = device.Event() if hasattr(device, "Event") else None
        if self._done is not None:
            self._done.record(device.current_stream(loss.device))

    def arrived(self) -> bool:
        """Return whether the copy is there. On a device without events it counts as there one commit later."""
        return self._done is None or bool(self._done.query())

    def value(self) -> float:
        """Return the loss."""
        return float(self._copy)


class Losses:
    """Losses of one rank. `tell`, if there is one, gets step and value of the first that is not finite."""

    def __init__(self, tell: Tell | None = None, copy: Callable[[torch.Tensor], Copy] = DeviceCopy) -> None:
        self.tell = tell
        self._copy = copy
        self._under_way: deque[tuple[int, Copy]] = deque()
        self._finite = True
        self._seen = False

    @property
    def known_finite(self) -> bool:
        """True if the newest checked loss is finite."""
        return self._seen and self._finite

    def look(self, loss: float | torch.Tensor, step: int) -> None:
        """Check the loss of step `step`, one number.

        Raises:
            ConfigError: the loss is no number, or a tensor of more than one.
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
        """Forget losses on their way: the state goes back to an earlier step, and a new streak may begin."""
        self._under_way.clear()
        self._finite, self._seen = True, False

    def take(self, *, finite: bool) -> None:
        """Adopt a donor's state: `finite` is whether its newest loss is known to be finite."""
        self._seen = finite

    def _judge(self, value: float, step: int) -> None:
        finite = math.isfinite(value)
        if self._finite and not finite and self.tell is not None:
            self.tell(step, repr(value))
        self._finite, self._seen = finite, True
