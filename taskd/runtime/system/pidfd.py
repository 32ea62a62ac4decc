"""Detection of a process's end: by its pidfd, or by polling if the kernel has no pidfd or gives none.

Rules:

1. Without a pidfd a process is identified by its number and its start time.
2. No process is reaped here.
3. A Python that was built for an older C library, such as conda's, lacks `os.pidfd_open` and
   `signal.pidfd_send_signal`. The system calls are made by number then. No other module of taskd names the two
   functions.
"""

import ctypes
import os
import select
import signal
import time
from contextlib import suppress
from typing import Final

from taskd.core.diagnosis.evidence import RunState
from taskd.runtime.system.processes import stat

LOOK_S: Final = 0.02
"""Interval of polls of a process that has no pidfd, in seconds."""
_SEND_SIGNAL: Final = 424
_OPEN: Final = 434
"""Numbers of the system calls, the same on every architecture that torch runs on."""


def make_pidfd(pid: int) -> int:
    """Return a process's pidfd. Raises `OSError` where it can have none, `ProcessLookupError` if it has gone."""
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    return _call(_OPEN, pid, 0)


def signal_pidfd(descriptor: int, number: int) -> None:
    """Signal the process of a pidfd. Raises `OSError` if that is refused, `ProcessLookupError` if it has gone."""
    if hasattr(signal, "pidfd_send_signal"):
        signal.pidfd_send_signal(descriptor, number)
    else:
        _call(_SEND_SIGNAL, descriptor, number, 0, 0)


def _call(number: int, *arguments: int) -> int:
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    result = int(call(*map(ctypes.c_long, (number, *arguments))))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def open_pidfd(pid: int) -> int | None:
    """Return a process's pidfd, or None where it can have none. Raises `ProcessLookupError`."""
    try:
        return make_pidfd(pid)
    except ProcessLookupError:
        raise
    except OSError:  # Linux before 5.3, a container's seccomp profile, too many open files
        return None


def has_ended(pid: int) -> bool:
    """Return whether a process, child or not, has ended. Leaves it to be reaped."""
    with suppress(ChildProcessError):
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    known = stat(pid)
    if known is not None:
        return known.state in (RunState.ZOMBIE, RunState.DEAD)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def await_end(pid: int, timeout_s: float | None) -> None:
    """Wait until a process has ended, at most `timeout_s` seconds. Raises `ProcessLookupError` if there is none."""
    descriptor = open_pidfd(pid)
    if descriptor is None:
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not has_ended(pid) and (until_s is None or time.monotonic() < until_s):
            time.sleep(LOOK_S)
        return
    try:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        poller.poll(None if timeout_s is None else max(0, int(timeout_s * 1000)))
    finally:
        os.close(descriptor)


class ProcessHandle:
    """One process, whose number may pass to another one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._start = stat(pid)
        try:
            self._descriptor, self._gone = open_pidfd(pid), False
        except ProcessLookupError:
            self._descriptor, self._gone = None, True

    @property
    def is_held(self) -> bool:
        """True if it has a pidfd: then a signal cannot reach another process."""
        return self._descriptor is not None

    def runs(self) -> bool:
        """Return whether the process has not ended."""
        if self._gone:
            return False
        if self._descriptor is None:
            known = stat(self.pid)
            other = known is not None and self._start is not None and known.start_ticks != self._start.start_ticks
            return not other and not has_ended(self.pid)
        poller = select.poll()
        poller.register(self._descriptor, select.POLLIN)
        return not poller.poll(0)

    def kill(self, number: int) -> None:
        """Signal the process, unless it has ended."""
        if self._descriptor is not None:
            try:
                signal_pidfd(self._descriptor, number)
            except ProcessLookupError:
                return
            except OSError:  # a seccomp profile may allow the one call and not the other
                pass
            else:
                return
        if self.runs():
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def close(self) -> None:
        """Release the pidfd. The process counts as gone from now on."""
        self._gone = True
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None
