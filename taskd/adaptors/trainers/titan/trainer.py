"""A trainer class of torchtitan's that goes on through faults."""

from typing import Any

from taskd.adaptors.trainers.library import fits
from taskd.adaptors.trainers.titan.run import TitanRun
from taskd.adaptors.trainers.titan.seams import TABLE
from taskd.adaptors.training.runtime import current


class TitanRecovery:
    """A base to be put before a trainer class of torchtitan's among the bases of another class."""

    taskd_options: dict[str, Any]
    """Options of `TrainState`: `backup_every`, `verify`, `every`."""

    def train(self) -> None:
        """Train, through faults where there is an agent."""
        runtime = current()
        own: Any = super().train  # type: ignore[misc]  # the other base has it
        if runtime is None or not fits("torchtitan", TABLE):
            own()
            return
        TitanRun(self, runtime, own, dict(self.taskd_options)).train()
