"""Cost of copies on one rank, and the interval between copies that keeps it low."""

from dataclasses import dataclass, field
from math import ceil
from typing import Final

SHARE: Final = 0.02
"""Largest share of the time that copies may cost if the script sets no interval."""


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

    def due_after(self, step: int, now: int, every: int) -> int:
        """Return the next step to copy. `now`: newest committed step. `every`: the interval, 0 to choose it by cost."""
        soon = max(step, now) + 1
        if every:
            return -(-soon // every) * every
        (before, before_s), (last, last_s) = [(0, 0.0), (0, 0.0), *self.by_step][-2:]
        if last <= before or not before:
            return soon
        each_s = (last_s - before_s) / (last - before)
        rounds = max(1, self.whole + self.skipped)
        cost_s = self.stall_s / rounds + self.busy_s
        return max(soon, step + ceil(cost_s / (SHARE * each_s)))
