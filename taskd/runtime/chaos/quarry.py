"""A process that a scene strikes: it is signalled only if it is still the one that was looked up.

Rules:

1. A process is its number and its start time. Both are compared when the kernel already holds the process by a pidfd:
   a number that another one has taken meanwhile is never signalled.
2. Whose it is must be known right before the signal, too, except to let go on what was stopped by a scene.
"""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from taskd.errors import ChaosError
from taskd.runtime.system.processes import Stat, read, stat

_MOST_ANCESTORS: Final = 64


@dataclass(frozen=True, slots=True)
class Quarry:
    """One process, and what it is to the job."""

    pid: int
    start_ticks: int
    name: str

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"

    @property
    def stat(self) -> Stat | None:
        """What /proc says of it; None if it has ended."""
        known = stat(self.pid)
        return known if known is not None and known.alive and known.start_ticks == self.start_ticks else None


def quarry(pid: int, name: str) -> Quarry | None:
    """A living process by its number."""
    known = stat(pid)
    return Quarry(pid, known.start_ticks, name) if known is not None and known.alive else None


def descends(pid: int, ancestor: Quarry) -> bool:
    """Whether a process is the ancestor, or below it."""
    for _ in range(_MOST_ANCESTORS):
        known = stat(pid)
        if known is None:
            return False
        if pid == ancestor.pid:
            return known.start_ticks == ancestor.start_ticks
        pid = known.parent
    return False


def send(target: Quarry, number: signal.Signals, belongs: Callable[[int], bool]) -> bool:
    """Signal it, if it lives and belongs to the job. False: it has ended. Raises `ChaosError` if it must not be."""
    try:
        handle = os.pidfd_open(target.pid)
    except ProcessLookupError:
        return False
    try:
        if target.stat is None:
            return False
        if not belongs(target.pid):
            raise ChaosError(f"{target} is no process below this job's torchrun any more; it is left alone")
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        raise ChaosError(
            f"{target} belongs to user {_owner(target.pid)}, this is user {os.getuid()}; run it as that user"
        ) from None
    finally:
        os.close(handle)
    return True


def _owner(pid: int) -> str:
    lines = (read(f"/proc/{pid}/status") or "").splitlines()
    return next((line.split()[1] for line in lines if line.startswith("Uid:")), "unknown")
