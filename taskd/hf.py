"""Recovery in place for Hugging Face's `Trainer`, and for trainers made from it, such as TRL's `SFTTrainer`.

    from taskd.hf import TaskdCallback, resilient

    trainer = Trainer(..., callbacks=[TaskdCallback()])
    with resilient(trainer):
        trainer.train()

Under plain torchrun, and alone, the trainer trains as it does without these lines. See docs/trainers/hf.md.
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
    """Holds what taskd is told about a trainer; without one, `resilient` takes the defaults.

    Args:
        backup_every: steps from one copy of a state that no other rank has (FSDP2) to the next; 0 for none. By default
            copies are made as often as they cost at most 2 % of the time.
        verify: "replicas" to have taskd compare what ranks hold that should be equal.
        every: after so many steps.
    """

    def __init__(self, *, backup_every: int | None = None, verify: str | None = None, every: int | None = None) -> None:
        self._options = {"backup_every": backup_every, "verify": verify, "every": every}
        self._used = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Warn of a trainer that nobody has made resilient."""
        if not self._used and current() is not None:
            _log.warning(
                "the trainer has a TaskdCallback, and trainer.train() is not called within `with resilient(trainer):`, "
                "so that at a fault all processes start anew; expected both"
            )


@contextmanager
def resilient(trainer: Any) -> Iterator[None]:
    """Within this, `trainer.train()` goes on through faults of its ranks.

    A killed rank is replaced by a new process that runs the script up to here; all others stay. Weights, metrics and
    logs are those of an undisturbed run. What cannot be recovered so is left to the trainer as it is, with one warning.
    """
    callback = next((one for one in trainer.callback_handler.callbacks if isinstance(one, TaskdCallback)), None)
    options = {} if callback is None else dict(callback._options)
    if callback is not None:
        callback._used = True
    with recovered(trainer, options):
        yield
