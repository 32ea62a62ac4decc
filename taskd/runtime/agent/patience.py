"""How long a node waits for a manager that does not answer, before torchrun's own behaviour takes over.

Rules:

1. A node of several waits `TIMES` as long as the settings say: torchrun could do nothing better, and a manager that
   starts anew takes the node back.
2. One whose ranks have all ended well waits only as long as the settings say: it cannot gain by it.
"""

import time
from typing import Final

TIMES: Final = 10


class Patience:
    """Counts from the newest answer of a manager, and from its own making before the first."""

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._answered_s = time.monotonic()

    def renew(self) -> None:
        """A manager has answered, or may be expected to from now on."""
        self._answered_s = time.monotonic()

    def spent_s(self, places: int, *, ended: bool) -> float | None:
        """The time that was given to the manager of a job of so many places, once it is over.

        `ended` says that all ranks of this node have ended well.
        """
        limit_s = self._wait_s * (TIMES if places > 1 and not ended else 1)
        return limit_s if time.monotonic() - self._answered_s > limit_s else None
