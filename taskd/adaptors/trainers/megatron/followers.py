"""Megatron's learning rate schedule and loss scalers: their state at the commit, and how they follow a step.

Rules:

1. The schedule follows the optimizers by the same increment in each step. If it does not, its increment is unknown, and
   a step that was interrupted in between does not count.
2. A loss scaler moves before the optimizers: if the step is done again, it is put back first.
"""

from collections.abc import Mapping
from typing import Any


class MegatronSchedule:
    """An `OptimizerParamScheduler`, by the samples that it has counted."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._usual: int | None = None
        self._steady = True
        self.settled()

    @property
    def counted(self) -> int:
        """Samples of the committed steps."""
        return int(self._scheduler.num_steps)

    def take(self, counted: int) -> None:
        """Move to the count of another rank."""
        self._scheduler.step(counted - self._scheduler.num_steps)
        self.settled()

    def settled(self) -> None:
        """Record the present count as that of the committed step."""
        self._marked = self.counted

    def committed(self, *, stepped: bool) -> None:
        """Record a committed step. In a step that a loss scaler has left out the schedule does not move."""
        if stepped:
            moved = self.counted - self._marked
            self._steady = self._steady and self._usual in (None, moved)
            self._usual = moved
        self.settled()

    def put_back(self) -> None:
        """Go back to the committed count: the step is done again."""
        if self.counted != self._marked:
            self.take(self._marked)

    def lags(self) -> bool:
        """Return whether it has not moved in this step, and its increment is unknown."""
        return self.counted == self._marked and (self._usual is None or not self._steady)

    def follow(self) -> None:
        """Follow the optimizers by the usual increment: the step counts."""
        if self.counted == self._marked and self._usual:
            self._scheduler.step(self._usual)


class MegatronScaler:
    """A loss scaler of Megatron's; one that is constant has nothing to put back."""

    _COUNTS = ("_growth_tracker", "_hysteresis_tracker")

    def __init__(self, scaler: Any) -> None:
        self._scaler = scaler
        self.settled()

    def settled(self) -> None:
        """Record the present values as those of the committed step."""
        self._known = self._now()  # its scale is replaced when it changes, and not written to

    def put_back(self) -> None:
        """Go back to the committed values: the step is done again."""
        for name, value in self._known.items():
            setattr(self._scaler, name, value)

    def state(self) -> dict[str, Any]:
        """Return the values of the committed step."""
        return dict(self._known)

    def take(self, state: Mapping[str, Any]) -> None:
        """Take over the values of another rank's scaler."""
        scale = self._scaler._scale
        for name, value in state.items():
            setattr(self._scaler, name, value.to(scale.device) if name == "_scale" else value)
        self.settled()

    def _now(self) -> dict[str, Any]:
        found = {"_scale": self._scaler._scale}
        return found | {name: getattr(self._scaler, name) for name in self._COUNTS if hasattr(self._scaler, name)}
