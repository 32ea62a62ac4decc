"""accelerate's counters of a training beside its model: the place in accumulating, and the loaders that are read."""

from collections.abc import Sequence
from typing import Any

from taskd.adaptors.training.data.as_plain import PlainPlace


class AcceleratorCounters:
    """A part of a training state that is each rank's own: every rank goes back to its own counters at a fault.

    Args:
        accelerator: owner of the counters.
        places: of its loaders that are trained from, with the loader each. They have gone back before this does.
    """

    def __init__(self, accelerator: Any, places: Sequence[tuple[PlainPlace, Any]]) -> None:
        self._accelerator = accelerator
        self._places = places

    def state_dict(self) -> dict[str, Any]:
        """Return the present counters."""
        accelerator = self._accelerator
        return {
            "step": accelerator.step,
            "skipped": [bool(optimizer._is_overflow) for optimizer in accelerator._optimizers],
            "saves": accelerator.project_configuration.iteration,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to these counters.

        A loader that goes on with its iterator is being read. Any other one no longer is.
        """
        accelerator = self._accelerator
        accelerator.step = state["step"]
        accelerator.project_configuration.iteration = state["saves"]
        for optimizer, skipped in zip(accelerator._optimizers, state["skipped"], strict=True):
            optimizer._is_overflow = skipped
        gradients = accelerator.gradient_state
        gradients._set_sync_gradients(sync_gradients=True)
        gradients.dataloader_references = [None, *(loader for place, loader in self._places if place.goes_on)]
