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

Under plain torchrun, or without torchrun, the loop trains as it does without these lines. See
docs/trainers/accelerate.md.
"""

from typing import Any

from taskd.adaptors.trainers.accelerate.seams import TABLE
from taskd.adaptors.trainers.accelerate.state import AcceleratorState
from taskd.adaptors.trainers.accelerate.state import prepare as _prepare
from taskd.adaptors.trainers.library import misfit
from taskd.errors import ConfigError

__all__ = ["AcceleratorState", "prepare"]


def prepare(accelerator: Any, *loaders: Any, **options: Any) -> AcceleratorState:
    """Return the training state of all objects that this accelerator has prepared.

    Args:
        accelerator: an `accelerate.Accelerator` whose `prepare` was called.
        loaders: the prepared loaders that training reads. Optional if only one was prepared.
        options: arguments of `taskd.TrainState`: `seed`, `backup_every`, `verify`, `every`, `replicated`, `data`, and
            further parts by keyword.

    Raises:
        ConfigError: the accelerator has prepared no optimizer, or not one of `loaders`; several loaders were prepared
            and none is named; or taskd does not fit this version of accelerate.
    """
    if found := misfit("accelerate", TABLE):
        raise ConfigError(f"{found}; install a taskd for this accelerate, or make a taskd.TrainState of your own parts")
    return _prepare(accelerator, loaders, options)
