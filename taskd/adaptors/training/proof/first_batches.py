"""Check that a new process receives the same first batches as its predecessor did.

Rules:

1. A process that died after the forward pass of a step has recorded a sample of that step's batch
   (`data/batch_samples.py`). Its successor must receive the same batch.
2. If the batch differs, the training is not exact: all processes start anew, for no restart.
3. The verdict comes after the successor's second commit, since a recovery lasts until the first. If the training ends
   earlier, a difference is logged.
4. A process that died before the forward pass has recorded no sample of the step, and nothing is compared.
"""

import logging
from collections.abc import Callable
from typing import Final

import torch.distributed as dist

from taskd.adaptors.training.recovery import StateRecovery

logger = logging.getLogger(__name__)
_COMMITS: Final = 2
"""Commits of a new process before the verdict. A batch that has not come by then is no longer expected."""


class FirstBatches:
    """The first-batch check of one process.

    Args:
        recovery: recovery of the state that has the loaders.
        differs: called after the second commit with the difference, in words.
    """

    def __init__(self, recovery: StateRecovery, differs: Callable[[str], None]) -> None:
        self._recovery, self._differs = recovery, differs
        self._left = 0

    @property
    def owes(self) -> bool:
        """True if `committed` must be called at the next commit."""
        return self._left > 0

    def enter(self, *, is_new: bool) -> None:
        """Start before a call of the training function. `is_new`: it is the first call in a replacement process."""
        parts = self._recovery.parts
        parts.sample_batches(dist.get_world_size() if dist.is_initialized() else 1)
        expected = self._recovery.batches_ahead() if is_new else {}
        for name, batch in expected.items():
            if name in parts.samples:
                parts.samples[name].expected = batch
        if expected or self._left:  # the latter: a second fault came before the verdict
            self._left = _COMMITS

    def committed(self) -> None:
        """Count a committed step, and give the verdict after the last one."""
        if self._left:
            self._left -= 1
            if not self._left:
                self._expect_nothing()
                if text := self._found:
                    self._differs(text)

    def close(self) -> None:
        """End with the training. Log a difference that had no verdict yet."""
        if self._left and (text := self._found):
            logger.warning("the training is not exact: %s", text)
        self._left = 0

    # Inside.

    def _expect_nothing(self) -> None:
        for samples in self._recovery.parts.samples.values():
            samples.expected = b""

    @property
    def _found(self) -> str:
        """The difference, in words; "" for none."""
        for name, samples in self._recovery.parts.samples.items():
            if samples.differs:
                return f"the batches of {name!r}: a new process was given another one than the process before it"
        return ""
