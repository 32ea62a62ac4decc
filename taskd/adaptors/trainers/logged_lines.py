"""Which lines the loggers of one rank were given: a number in shared memory that outlives `kill -9`.

Rules:

1. A line is known by the last committed step and its number behind that commit. Lines come in that order.
2. It is put down before the loggers are given the line. A rank that dies in between has not given it: a line may be
   missing then, and is never given twice.
3. Where there is no such memory, lines may be given twice.
"""

from pathlib import Path

from taskd.adaptors.trainers.marks import Marks
from taskd.runtime.worker.worker import WorkerLink

_PAGE = 1
"""Of the marks' memory: the first is for an adapter's own."""
_LINES = 1 << 20
"""Of one step, at most."""


class LoggedLines:
    """Those of one rank.

    Args:
        path: of the number; None for none that outlives this process.
        joins: whether a former process of the rank may have put it down.
    """

    def __init__(self, path: Path | None, *, joins: bool) -> None:
        self._marks = Marks(path, anew=not joins, page=_PAGE)
        self._step = self._number = 0

    @classmethod
    def of_rank(cls, link: WorkerLink) -> "LoggedLines":
        """Those of this process's rank."""
        return cls(link.config.marks, joins=link.joins)

    def at(self, step: int) -> None:
        """Lines come behind the commit of this step from now on, from the first."""
        self._step, self._number = step, 0

    def takes(self) -> bool:
        """Another line: whether it is new, which is put down."""
        line = self._step * _LINES + self._number
        self._number += 1
        if line < self._marks[0]:
            return False
        self._marks[0] = line + 1
        return True
