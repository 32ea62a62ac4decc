"""Which reports Ray has got, and which it is still owed, after a worker was replaced.

Rules:

1. Reports are numbered in the order in which the training gives them, on all ranks alike: a step that is done again
   gives the same numbers again.
2. When Ray replaces a worker it drops what it has not yet got from all: the new worker is told how many it has.
3. A number that Ray has is not given again; one that it has not is given before any newer one.
"""

import json
from dataclasses import dataclass, field
from typing import Any, Final

MOST_KEPT: Final = 2
"""Ray holds one report of each worker that it has not fetched, and fetches them in order."""


@dataclass(frozen=True)
class KeptReport:
    """What a report was, as far as it is needed to give it again. `path` is that of the checkpoint that Ray has."""

    number: int
    metrics: str
    path: str = ""


@dataclass
class Owed:
    """One rank's account. `began` is how many reports Ray had before the training."""

    began: int = 0
    number: int = 0
    """Of the newest report that the training has given."""
    sent: int = 0
    """Of the newest that Ray has got, or holds."""
    kept: tuple[KeptReport, ...] = field(default=())

    def next(self) -> bool:
        """The training gives its next report: whether Ray is to get it."""
        self.number += 1
        return self.number > self.sent

    def keep(self, metrics: dict[str, Any], path: str) -> None:
        """That report was given to Ray."""
        self.sent = self.number
        kept = KeptReport(self.number, json.dumps(metrics, default=float), path)
        self.kept = (*(one for one in self.kept if one.number < self.number), kept)[-MOST_KEPT:]

    def settle(self, total: int) -> tuple[KeptReport, ...]:
        """Ray has so many reports in all, and holds none: those that are to be given again, oldest first."""
        self.sent = total - self.began
        again = tuple(one for one in self.kept if self.sent < one.number <= self.number)
        self.sent = max([self.sent, *(one.number for one in again)])
        return again

    def state(self) -> dict[str, Any]:
        """What the rank's next process is to know."""
        return {
            "began": self.began,
            "number": self.number,
            "kept": [[one.number, one.metrics, one.path] for one in self.kept],
        }

    def load(self, state: dict[str, Any]) -> None:
        """The inverse of `state`. What Ray has got stays as it is known."""
        self.began, self.number = int(state["began"]), int(state["number"])
        self.kept = tuple(KeptReport(int(number), str(text), str(path)) for number, text, path in state["kept"])
