"""Collectives that failed in this process, whether or not the script lets their errors out.

Rules:

1. What an optimizer steps by after a failed collective was never reduced: that state is no rank's to give away, and
   what was committed of it neither.
2. Errors are seen where they leave torch: its backward pass, in which DDP reduces, and the functions of
   `torch.distributed`, which log them. A step pays one call of a function.
3. Only an error that tells of a connection counts, or one that comes while the collectives are broken: what torch
   refuses to do is the script's own affair.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import c10d_logger

from taskd.adaptors.faults import in_one_line, kind_of
from taskd.core.diagnosis.conditions import of_a_connection
from taskd.core.diagnosis.faults import FaultKind
from taskd.runtime.worker.frameless import ORIGINAL, Steps, around, followed


class Failures:
    """Since this rank's state was last known to be good.

    `steps` counts what the optimizers did since the commit; `tell` hears whether there are any failures.
    """

    def __init__(self, steps: Callable[[], int], tell: Callable[[bool], None]) -> None:
        self._steps = steps
        self._tell = tell
        self._steps_before: int | None = None
        self.any = False
        """Whether a collective has failed."""
        self.committed = False
        """Whether a step that was made after it counts as committed."""

    def note(self) -> None:
        """One has failed."""
        if self._steps_before is None:
            self._steps_before = self._steps()
            self.any = True
            self._tell(True)

    @property
    def stepped(self) -> bool:
        """Whether an optimizer has stepped after it, since the commit."""
        return self._steps_before is not None and self._steps() > self._steps_before

    def commit(self) -> None:
        """The step under way is about to be committed."""
        self.committed = self.committed or self.stepped
        self._steps_before = 0

    def forget(self) -> None:
        """The state is good."""
        self._steps_before, self.any, self.committed = None, False, False
        self._tell(False)


def is_own(error: BaseException) -> bool:
    """Whether neither a connection nor a machine explains it, as far as is known: the script raises it by itself."""
    return isinstance(error, RuntimeError) and kind_of(error) is None and not of_a_connection(in_one_line(error))


def watch(broken: Callable[[], bool], note: Callable[[], None]) -> None:
    """Have `note` called for each collective that fails. `broken` tells whether none can work. Once per process."""

    def look(error: BaseException | None) -> None:
        if error is not None and (kind_of(error) is FaultKind.RETRY or broken()):
            note()

    def look_at_backward(error: BaseException) -> None:
        if isinstance(error, RuntimeError):
            look(error)

    def look_at_logged(*_: Any, **__: Any) -> Steps:
        look(sys.exc_info()[1])
        return (yield ORIGINAL)

    describe = vars(c10d_logger)["_get_msg_dict"]
    vars(torch.autograd)["backward"] = followed(torch.autograd.backward, failed=look_at_backward)
    vars(c10d_logger)["_get_msg_dict"] = around(describe, look_at_logged)
