"""The reports that Ray has received, and those that it is still owed after a worker was replaced.

Rules:

1. Reports are numbered in the order in which the training gives them, on all ranks alike. A step that is done again
   gives the same numbers again.
2. When Ray replaces a worker it drops the reports that it does not have from all ranks. The new worker gets the number
   of those that Ray has.
3. A report that Ray has is not given again. One that it does not have is given before any newer one.
"""

import json
from dataclasses import dataclass, field
from typing import Any, Final

MOST_KEPT: Final = 2
"""Ray holds one report of each worker that it has not fetched, and fetches them in order."""


@dataclass(frozen=True)
class KeptReport:
    """A report's data that are needed to give it again. `path` is that of the checkpoint that Ray has."""

    number: int
    metrics: str
    path: str = ""


@dataclass
class Owed:
    """One rank's account. `began`: how many reports Ray had before the training."""

    began: int = 0
    number: int = 0
    """Number of the newest report that the training has given."""
    sent: int = 0
    """Number of the newest report that Ray has received, or holds."""
    kept: tuple[KeptReport, ...] = field(default=())

    def next(self) -> bool:
        """Count the training's next report; return whether Ray should get it."""
        self.number += 1
        return self.number > self.sent

    def keep(self, metrics: dict[str, Any], path: str) -> None:
        """Keep a report that was given to Ray."""
        self.sent = self.number
        kept = KeptReport(self.number, json.dumps(metrics, default=float), path)
        self.kept = (*(one for one in self.kept if one.number < self.number), kept)[-MOST_KEPT:]

    def settle(self, total: int) -> tuple[KeptReport, ...]:
        """Return the reports to be given again, oldest first: Ray has `total` reports in all, and holds none."""
        self.sent = total - self.began
        again = tuple(one for one in self.kept if self.sent < one.number <= self.number)
        self.sent = max([self.sent, *(one.number for one in again)])
        return again

    def state(self) -> dict[str, Any]:
        """Return the data for the rank's next process."""
        return {
            "began": self.began,
            "number": self.number,
            "kept": [[one.number, one.metrics, one.path] for one in self.kept],
        }

    def load(self, state: dict[str, Any]) -> None:
        """Take over the data of `state`. The number of reports that Ray has received stays."""
        self.began, self.number = int(state["began"]), int(state["number"])
        self.kept = tuple(KeptReport(int(number), str(text), str(path)) for number, text, path in state["kept"])
