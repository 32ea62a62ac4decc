"""The target process of a scenario: it gets a signal only if it is still the one that was looked up.

Rules:

1. A process is identified by its pid and its start time. Both are compared while a pidfd holds the process. So a
   process that has got the same pid meanwhile is never signalled.
2. It must also belong to the job right before the signal, except to continue a process that a scenario has stopped.
"""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from taskd.errors import ChaosError
from taskd.runtime.system.pidfd import make_pidfd, signal_pidfd
from taskd.runtime.system.processes import Stat, read, stat

_MOST_ANCESTORS: Final = 64


@dataclass(frozen=True, slots=True)
class TargetProcess:
    """One process, with its name in the job."""

    pid: int
    start_ticks: int
    name: str

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"

    @property
    def stat(self) -> Stat | None:
        """State in /proc; None if it has ended."""
        known = stat(self.pid)
        return known if known is not None and known.alive and known.start_ticks == self.start_ticks else None


def target(pid: int, name: str) -> TargetProcess | None:
    """Return a living process by its number; None if there is none."""
    known = stat(pid)
    return TargetProcess(pid, known.start_ticks, name) if known is not None and known.alive else None


def descends(pid: int, ancestor: TargetProcess) -> bool:
    """Return whether a process is the ancestor, or below it."""
    for _ in range(_MOST_ANCESTORS):
        known = stat(pid)
        if known is None:
            return False
        if pid == ancestor.pid:
            return known.start_ticks == ancestor.start_ticks
        pid = known.parent
    return False


def open_handle(pid: int) -> int:
    """Return a process's pidfd. Raises `ProcessLookupError`, and `ChaosError` where the kernel gives none."""
    try:
        return make_pidfd(pid)
    except ProcessLookupError:
        raise
    except OSError as error:
        raise ChaosError(
            f"the kernel gives no pidfd of process {pid} ({error.strerror}), expected Linux 5.3 or newer and a seccomp "
            "profile that allows pidfd_open; run it where that holds"
        ) from error


def send(target: TargetProcess, number: signal.Signals, belongs: Callable[[int], bool]) -> bool:
    """Signal a process if it lives and belongs to the job. Returns False if it has ended.

    Raises `ChaosError` if it must not be signalled.
    """
    try:
        handle = open_handle(target.pid)
    except ProcessLookupError:
        return False
    try:
        if target.stat is None:
            return False
        if not belongs(target.pid):
            raise ChaosError(f"{target} is no process below this job's torchrun any more; it is left alone")
        signal_pidfd(handle, number)
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
