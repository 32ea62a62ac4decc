"""A rehearsal's order to its ranks, as a file in its folder, where each rank also writes its records."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from taskd.core.rehearsal.kills import Kill, Moment

NAME: Final = "order.json"


@dataclass(frozen=True)
class RehearsalOrder:
    """Order for one run.

    Attributes:
        last: the step after which the ranks are ended.
        least: the least number of steps if they take long.
        after_s: time after which they count as long, in seconds.
        kills: which rank dies when.
        watched: things for which the line that changes them is searched: `part:NAME` or `variable:NAME`.
    """

    last: int
    least: int
    after_s: float
    kills: tuple[Kill, ...] = ()
    watched: tuple[str, ...] = ()

    def write(self, folder: Path) -> None:
        """Write the order to a rehearsal's folder."""
        kills = [[kill.number, kill.rank, kill.step, kill.moment.name] for kill in self.kills]
        values = {"last": self.last, "least": self.least, "after_s": self.after_s, "watched": self.watched}
        (folder / NAME).write_text(json.dumps({**values, "kills": kills}))

    @staticmethod
    def read(folder: Path) -> "RehearsalOrder":
        """Read the order from a rehearsal's folder."""
        found = json.loads((folder / NAME).read_text())
        kills = tuple(Kill(number, rank, step, Moment[name]) for number, rank, step, name in found["kills"])
        return RehearsalOrder(found["last"], found["least"], found["after_s"], kills, tuple(found["watched"]))
