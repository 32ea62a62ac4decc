"""Recovery in place for loops that are written with Hugging Face's accelerate.

    import taskd.accelerate

    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    state = taskd.accelerate.prepare(accelerator, loader)

    @taskd.resilient(state)
    def train():
        for epoch in state.epochs(3):
            for batch in loader:
                with accelerator.accumulate(model):
                    ...
                state.commit()

    train()

Under plain torchrun, and alone, the loop trains as it does without these lines. See docs/trainers/accelerate.md.
"""

from typing import Any

from taskd.adaptors.trainers.accelerate.seams import TABLE
from taskd.adaptors.trainers.accelerate.state import AcceleratorState
from taskd.adaptors.trainers.accelerate.state import prepare as _prepare
from taskd.adaptors.trainers.library import misfit
from taskd.errors import ConfigError

__all__ = ["AcceleratorState", "prepare"]


def prepare(accelerator: Any, *loaders: Any, **options: Any) -> AcceleratorState:
    """The training state of what this accelerator has prepared.

    Args:
        accelerator: an `accelerate.Accelerator` whose `prepare` was called.
        loaders: those prepared loaders that are trained from; may be left out if only one was prepared.
        options: as `taskd.TrainState` takes them: `seed`, `backup_every`, `verify`, `every`, `replicated`, `data`, and
            further parts by keyword.

    Raises:
        ConfigError: nothing was prepared, a loader is none of the accelerator's, which is trained from is not clear,
            or this version of accelerate is not one that taskd fits.
    """
    if found := misfit("accelerate", TABLE):
        raise ConfigError(f"{found}; install a taskd for this accelerate, or make a taskd.TrainState of your own parts")
    return _prepare(accelerator, loaders, options)
