"""The training state of a loop that uses accelerate's objects.

Rules:

1. Its parts are the objects that the accelerator has prepared: models, optimizers, schedulers, and its gradient scaler.
   Objects registered for its checkpoints are parts too.
2. A commit counts where gradients were synchronized: between two micro-batches of a step it does nothing.
3. Loaders have the order and the random numbers that accelerate gives them (see `as_plain`).
"""

from collections.abc import Mapping
from typing import Any

import torch

from taskd.adaptors.trainers.accelerate.counters import AcceleratorCounters
from taskd.adaptors.training.data.as_plain import PlainPlace
from taskd.adaptors.training.state import TrainState
from taskd.errors import ConfigError


class AcceleratorState(TrainState):
    """A `TrainState` of the objects that an accelerator has prepared."""

    def __init__(self, accelerator: Any, loaders: tuple[Any, ...], given: Mapping[str, Any]) -> None:
        options = dict(given)
        places = [(PlainPlace(loader), loader) for loader in loaders]
        data: dict[str, Any] = {_name("loader", number): place for number, (place, _) in enumerate(places)}
        data["accelerator"] = AcceleratorCounters(accelerator, places)
        replicated = {_name("registered", number): one for number, one in enumerate(accelerator._custom_objects)}
        parts: dict[str, Any] = {"scaler": accelerator.scaler}
        for kind in ("model", "optimizer", "scheduler"):
            for number, one in enumerate(getattr(accelerator, f"_{kind}s")):
                parts[_name(kind, number)] = one
        super().__init__(
            data={**data, **(options.pop("data", None) or {})},
            replicated={**replicated, **(options.pop("replicated", None) or {})},
            **parts,
            **options,
        )
        vars(self).update(_accelerator=accelerator, _places=[place for place, _ in places])

    def commit(self, loss: float | torch.Tensor | None = None) -> None:
        """Count this step as done, if the accelerator has synchronized its gradients; if not, the step goes on.

        To be called last in the loop's body, behind `accelerator.accumulate`. `loss` as `TrainState.commit` has it.
        """
        if self._accelerator.sync_gradients:
            super().commit(loss)
            for place in self._places:
                place.committed()


def prepare(accelerator: Any, loaders: tuple[Any, ...], options: Mapping[str, Any]) -> AcceleratorState:
    """Return the state of the objects that the accelerator has prepared; `loaders` are trained from.

    Raises:
        ConfigError: nothing was prepared, a loader is none of the accelerator's, or the loader to train from is not
            clear.
    """
    prepared = accelerator._dataloaders
    if not accelerator._optimizers:
        raise ConfigError(
            "the accelerator has prepared no optimizer; call accelerator.prepare(model, optimizer, loader, …) before "
            "taskd.accelerate.prepare(accelerator, loader)"
        )
    if not loaders and len(prepared) > 1:
        raise ConfigError(
            f"the accelerator has prepared {len(prepared)} data loaders, and which of them is trained from is not "
            "clear; pass it: taskd.accelerate.prepare(accelerator, train_loader)"
        )
    loaders = loaders or tuple(prepared)
    for loader in loaders:
        if not any(loader is one for one in prepared):
            raise ConfigError(
                f"taskd.accelerate.prepare got a {type(loader).__name__} that the accelerator has not prepared; pass "
                "what accelerator.prepare(…, loader) has returned"
            )
    return AcceleratorState(accelerator, loaders, options)


def _name(kind: str, number: int) -> str:
    return f"{kind}_{number}" if number else kind
