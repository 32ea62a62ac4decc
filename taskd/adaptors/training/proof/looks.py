"""What is looked at behind early commits of a process: whether its state could be loaded after a fault.

Rules:

1. Only a process that begins with the job looks. A newcomer's predecessor has looked at the same place.
2. What fails inside is one line in the log, and the training goes on.
"""

import logging
import time

from taskd.adaptors.training.limits.refusals import Refusals
from taskd.adaptors.training.proof.tried import unloadable
from taskd.adaptors.training.recovery import StateRecovery

_log = logging.getLogger(__name__)


class EarlyLooks:
    """Those of one training function.

    Args:
        refusals: those of the process.
        recovery: of its state.
        joins: whether this is a newcomer.
    """

    def __init__(self, refusals: Refusals, recovery: StateRecovery, *, joins: bool) -> None:
        self._refusals, self._recovery = refusals, recovery
        self._tried = joins

    def committed(self) -> None:
        """A step is committed."""
        if not self._tried:
            self._tried = True
            self._try_state()

    def _try_state(self) -> None:
        begun_s = time.monotonic()
        try:
            found = unloadable(self._recovery.parts)
        except Exception:  # noqa: BLE001 - a part may raise anything, and no job ends by being looked at
            _log.info("the state could not be tried out at the first commit", exc_info=True)
            return
        self._refusals.add(*found)
        _log.debug("the state was tried out in %.1f ms", 1e3 * (time.monotonic() - begun_s))
