"""What copies have cost a rank, and how often they are made by that."""

from dataclasses import dataclass, field
from math import ceil
from typing import Final

SHARE: Final = 0.02
"""So much of the time may copies cost where the script does not say how often they are made."""


@dataclass
class Tally:
    """What copies have cost this rank, and how they have gone, since the world was formed."""

    whole: int = 0
    skipped: int = 0
    stall_s: float = 0.0
    """In which the main thread waited."""
    busy_s: float = 0.0
    """In which this rank's thread used the processor."""
    size_bytes: int = 0
    by_step: list[tuple[int, float]] = field(default_factory=list)
    """The last two steps that were due, and when."""

    def due_after(self, step: int, now: int, every: int) -> int:
        """The step to be copied after this one, where the training stands at `now` and no `every` is given."""
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
