"""Cost of copies on one rank, and the interval between copies that keeps it low."""

import time
from dataclasses import dataclass, field
from math import ceil
from typing import Final

SHARE: Final = 0.02
"""Largest share of the time that copies may cost if the script sets no interval."""
REST_S: Final = 5.0
"""Shortest interval between copies that only the loss of all ranks needs, in seconds; sooner at the beginning."""
REST: Final = 0.25
"""Part of its time so far that a training may lose at its beginning."""


@dataclass
class Tally:
    """Cost and results of copies on this rank since the world was formed."""

    whole: int = 0
    skipped: int = 0
    stall_s: float = 0.0
    """Time that the main thread waited, in seconds."""
    busy_s: float = 0.0
    """Processor time of the copying thread in the newest round, in seconds."""
    size_bytes: int = 0
    by_step: list[tuple[int, float]] = field(default_factory=list)
    """The last two steps that were copied, and when."""
    begun_s: float = field(default_factory=time.monotonic)

    def due_after(self, step: int, now: int, every: int, *, rests: bool = False) -> int:
        """Return the next step to copy.

        `now`: newest committed step. `every`: the interval, 0 to choose it by cost. `rests`: only the loss of all ranks
        needs a copy, so the interval is `REST_S` at least, or `REST` of the time since this world began.
        """
        soon = max(step, now) + 1
        if every:
            return -(-soon // every) * every
        (before, before_s), (last, last_s) = [(0, 0.0), (0, 0.0), *self.by_step][-2:]
        if last <= before or not before:
            return soon
        each_s = (last_s - before_s) / (last - before)
        rounds = max(1, self.whole + self.skipped)
        interval_s = (self.stall_s / rounds + self.busy_s) / SHARE
        if rests:
            interval_s = max(interval_s, min(REST_S, REST * (last_s - self.begun_s)))
        return max(soon, step + ceil(interval_s / each_s))
