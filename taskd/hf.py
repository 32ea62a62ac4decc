"""Recovery in place for Hugging Face's `Trainer`, and for its subclasses, such as TRL's `SFTTrainer`.

    from taskd.hf import TaskdCallback, resilient

    trainer = Trainer(..., callbacks=[TaskdCallback()])
    with resilient(trainer):
        trainer.train()

Under plain torchrun, or without torchrun, the trainer trains as it does without these lines. See docs/trainers/hf.md.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import TrainerCallback

from taskd.adaptors.trainers.hf.trainer import recovered
from taskd.adaptors.training.runtime import current

__all__ = ["TaskdCallback", "resilient"]

_log = logging.getLogger(__name__)


class TaskdCallback(TrainerCallback):
    """Options of taskd for one trainer. Without this callback, `resilient` takes the defaults.

    Args:
        backup_every: steps between two copies of a state that no other rank has (FSDP2); 0 for no copies. By default
            copies are made as often as they cost at most 2 % of the time.
        verify: "replicas" makes taskd compare the states of ranks that should be equal.
        every: steps between two such comparisons.
    """

    def __init__(self, *, backup_every: int | None = None, verify: str | None = None, every: int | None = None) -> None:
        self._options = {"backup_every": backup_every, "verify": verify, "every": every}
        self._used = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Warn if the training starts outside of `resilient`."""
        if not self._used and current() is not None:
            _log.warning(
                "the trainer has a TaskdCallback, and trainer.train() is not called within `with resilient(trainer):`, "
                "so that at a fault all processes start anew; expected both"
            )


@contextmanager
def resilient(trainer: Any) -> Iterator[None]:
    """Hold a context in which `trainer.train()` continues through faults of its ranks.

    A new process replaces a killed rank and runs the script up to this context. All other processes stay. Weights,
    metrics and logs are those of an undisturbed run. A training that cannot be recovered in place runs as it is, with
    one warning.
    """
    callback = next((one for one in trainer.callback_handler.callbacks if isinstance(one, TaskdCallback)), None)
    options = {} if callback is None else dict(callback._options)
    if callback is not None:
        callback._used = True
    with recovered(trainer, options):
        yield
