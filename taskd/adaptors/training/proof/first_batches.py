"""The first batches of a new process must be those that the process before it was given.

Rules:

1. A process that died behind the forward pass of a step has recorded some bytes of the batch of that step
   (`data/batch_samples.py`). Whoever takes its place is given the same batch again.
2. If that is another one, the new process has other data: the training is not exact, and all processes start anew, for
   no restart.
3. The new process judges behind its second commit: a recovery lasts until the first one. Where the training ends
   before, the log says so.
4. A process that died before that pass has recorded nothing of the step, and nothing is compared.
"""

import logging
from collections.abc import Callable
from typing import Final

import torch.distributed as dist

from taskd.adaptors.training.recovery import StateRecovery

logger = logging.getLogger(__name__)
_COMMITS: Final = 2
"""Of a new process, behind which it judges. A batch that has not come by then is not expected any more."""


class FirstBatches:
    """The first-batch check of one process.

    Args:
        recovery: that of the state whose loaders they come from.
        differs: called behind the second commit with what differs.
    """

    def __init__(self, recovery: StateRecovery, differs: Callable[[str], None]) -> None:
        self._recovery, self._differs = recovery, differs
        self._left = 0

    @property
    def owes(self) -> bool:
        """Whether it wants to hear of the next commit."""
        return self._left > 0

    def enter(self, *, is_new: bool) -> None:
        """The training function is about to be called. `is_new`: for the first time, in another process's place."""
        parts = self._recovery.parts
        parts.sample_batches(dist.get_world_size() if dist.is_initialized() else 1)
        expected = self._recovery.batches_ahead() if is_new else {}
        for name, batch in expected.items():
            if name in parts.samples:
                parts.samples[name].expected = batch
        if expected or self._left:  # a fault has come before it could judge
            self._left = _COMMITS

    def committed(self) -> None:
        """A step is committed."""
        if self._left:
            self._left -= 1
            if not self._left:
                self._expect_nothing()
                if text := self._found:
                    self._differs(text)

    def close(self) -> None:
        """The training function was left for good."""
        if self._left and (text := self._found):
            logger.warning("the training is not exact: %s", text)
        self._left = 0

    # Inside.

    def _expect_nothing(self) -> None:
        for samples in self._recovery.parts.samples.values():
            samples.expected = b""

    @property
    def _found(self) -> str:
        """What differs; "" if nothing does."""
        for name, samples in self._recovery.parts.samples.items():
            if samples.differs:
                return f"the batches of {name!r}: a new process was given another one than the process before it"
        return ""
