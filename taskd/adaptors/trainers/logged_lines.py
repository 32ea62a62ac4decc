"""The lines that the loggers of one rank have received: a number in shared memory that outlives `kill -9`.

Rules:

1. A line is identified by the last committed step and its number behind that commit. Lines come in that order.
2. The number is stored before the loggers receive the line. A rank that dies in between has not given it to them. So a
   line may be missing then, and is never given twice.
3. Without such memory, lines may be given twice.
"""

from pathlib import Path

from taskd.adaptors.trainers.marks import Marks
from taskd.runtime.worker.worker import WorkerLink

_PAGE = 1
"""Page of the marks' memory: the first one is for an adapter's own."""
_LINES = 1 << 20
"""Most lines of one step."""


class LoggedLines:
    """The logged lines of one rank.

    Args:
        path: of the number; None for none that outlives this process.
        joins: True if a former process of the rank may have stored it.
    """

    def __init__(self, path: Path | None, *, joins: bool) -> None:
        self._marks = Marks(path, anew=not joins, page=_PAGE)
        self._step = self._number = 0

    @classmethod
    def of_rank(cls, link: WorkerLink) -> "LoggedLines":
        """Return the lines of this process's rank."""
        return cls(link.config.marks, joins=link.joins)

    def at(self, step: int) -> None:
        """Start the count anew: the next lines come behind the commit of this step."""
        self._step, self._number = step, 0

    def takes(self) -> bool:
        """Count another line; return whether it is new, in which case it is stored."""
        line = self._step * _LINES + self._number
        self._number += 1
        if line < self._marks[0]:
            return False
        self._marks[0] = line + 1
        return True
