"""Failed collectives of this process, even if the script swallows their errors.

Rules:

1. An optimizer that steps after a failed collective uses gradients that were never reduced. No rank may give such a
   state away, even if it was committed.
2. Errors are detected where they leave torch: in its backward pass, in which DDP reduces, and in the functions of
   `torch.distributed`, which log them. This costs a step one function call.
3. An error counts only if it is about a connection, or if the collectives are broken at that time. Other errors of
   torch are the script's own affair.
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
    """Failures since this rank's state was last known to be good.

    `steps` counts the optimizers' activity since the commit. `tell` is called with True after the first failure, and
    with False when the failures are forgotten.
    """

    def __init__(self, steps: Callable[[], int], tell: Callable[[bool], None]) -> None:
        self._steps = steps
        self._tell = tell
        self._steps_before: int | None = None
        self.any = False
        """True if a collective has failed."""
        self.committed = False
        """True if a step made after the failure counts as committed."""

    def note(self) -> None:
        """Record that a collective has failed."""
        if self._steps_before is None:
            self._steps_before = self._steps()
            self.any = True
            self._tell(True)

    @property
    def stepped(self) -> bool:
        """True if an optimizer has stepped after the failure and since the commit."""
        return self._steps_before is not None and self._steps() > self._steps_before

    def commit(self) -> None:
        """Prepare for the commit of the step under way."""
        self.committed = self.committed or self.stepped
        self._steps_before = 0

    def forget(self) -> None:
        """Forget all failures, because the state is good again."""
        self._steps_before, self.any, self.committed = None, False, False
        self._tell(False)


def is_own(error: BaseException) -> bool:
    """Return whether the script raised the error by itself: no connection or machine is known to explain it."""
    return isinstance(error, RuntimeError) and kind_of(error) is None and not of_a_connection(in_one_line(error))


def watch(broken: Callable[[], bool], note: Callable[[], None]) -> None:
    """Call `note` for each collective that fails. Call this once per process.

    `broken` returns whether no collective can work at present.
    """

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
