"""How long a node waits for a manager that does not answer before torchrun's own behaviour takes over.

Rules:

1. In a job of several nodes it waits `TIMES` as long as the setting says: torchrun could do no better, and a manager
   that starts anew takes the node back.
2. A node whose ranks have all ended well waits only as long as the setting says: it gains nothing by more.
"""

import time
from typing import Final

TIMES: Final = 10


class ManagerTimeout:
    """Counts from the newest answer of a manager; before the first, from its own creation."""

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._answered_s = time.monotonic()

    def renew(self) -> None:
        """A manager has answered, or is expected to from now on."""
        self._answered_s = time.monotonic()

    def spent_s(self, places: int, *, ended: bool) -> float | None:
        """How long the manager of a job with `places` places was waited for, once that time is over; else None.

        `ended`: all ranks of this node have ended well.
        """
        limit_s = self._wait_s * (TIMES if places > 1 and not ended else 1)
        return limit_s if time.monotonic() - self._answered_s > limit_s else None
