"""Times at which an agent reports although nothing has changed that its manager must learn at once.

Rules:

1. A manager in another process gets every heartbeat, which shows that the node lives.
2. A manager in the agent's own process lives and dies with the agent. While the job runs it gets every fourth
   heartbeat. Between them it gets only changes that it cannot foresee. At every second heartbeat the agent checks
   whether the ranks commit steps, and reports if they have begun or ceased to. So a hang is detected as early as with
   every heartbeat.
3. Nothing waits for a report that ranks have joined a world, have its state, or have committed its first step. The
   ranks of a node reach these stages nearly together. So one report holds them all, `HELD_S` after the first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from taskd.wire.messages import RankStatus, Stage

SPARSE: Final = 4
"""Heartbeats from one report to the next, while nothing has to be reported between them."""
_LOOK: Final = 2
"""Heartbeats from one check to the next meanwhile."""

HELD_S: Final = 0.005
"""Longest delay of a report that nothing waits for."""
_UNAWAITED: Final = frozenset({Stage.JOINED, Stage.RESTORED, Stage.COMMITTED})


def can_wait(before: Sequence[RankStatus], now: Sequence[RankStatus]) -> bool:
    """Return whether nothing waits for a report of the changes between these statuses."""
    if len(before) != len(now):
        return False
    changed = [(old, new) for old, new in zip(before, now, strict=True) if old != new]
    return all(
        (new.rank, new.incarnation) == (old.rank, old.incarnation) and new.stage in _UNAWAITED for old, new in changed
    )


@dataclass(slots=True)
class Heartbeats:
    """Clock of one agent's reports. Times are seconds of one clock."""

    every_s: float
    _looked_s: float = 0.0
    _sent_s: float | None = None
    """Time of the last report; None if it could not be sent."""
    _step: int | None = None
    """Newest step at the last check; None if every heartbeat is sent."""
    _gets_on: bool = False
    """The last check found a new step."""

    @property
    def due_s(self) -> float:
        """Time of the next call of `beat`."""
        return self._looked_s + self.every_s * (1 if self._step is None else _LOOK)

    def beat(self, now_s: float, step: int | None) -> bool:
        """Return whether a report is due.

        Args:
            now_s: the time.
            step: newest step of the ranks, if the manager is in this process and the job runs.

        """
        self._looked_s = now_s
        got_on, self._gets_on = self._gets_on, step != self._step
        before, self._step = self._step, step
        if step is None or before is None or self._sent_s is None:
            return True
        return self._gets_on != got_on or now_s - self._sent_s >= SPARSE * self.every_s

    def sent(self, now_s: float, *, delivered: bool) -> None:
        """Record that a report was composed, and whether the link took it."""
        self._looked_s, self._sent_s = now_s, now_s if delivered else None
