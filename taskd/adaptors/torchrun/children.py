"""Processes that torchrun's agent must own without having started them: standbys, and orphans of dead ranks.

Rules:

1. This process becomes the reaper of its orphaned descendants. So a standby, which is forked twice, is its child.
2. Every wait names one pid or one process group. A wait for "any child" would steal exit statuses from others.
3. A process group is signalled only until its leader is reaped. Afterwards its number may belong to another group.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Final, cast

from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from taskd.errors import RecoveryError
from taskd.runtime.system.pidfd import await_end
from taskd.wire.kinds import LocalRank

_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_GET_CHILD_SUBREAPER: Final = 37
_STATUS_UNKNOWN: Final = 255
"""Reported for a child that other code has reaped. Not zero, because it must not pass for a success."""


def become_subreaper() -> None:
    """Make this process the parent of all descendants whose own parent ends. Raises `RecoveryError`."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise RecoveryError(
            f"prctl(PR_SET_CHILD_SUBREAPER) failed: {os.strerror(ctypes.get_errno())}; expected Linux 3.4 or newer; "
            "set TASKD_STANDBY=0 to do without warm processes"
        )


def is_subreaper() -> bool:
    """Return whether this process is the parent of all descendants whose own parent ends."""
    found = ctypes.c_int()
    return ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(found), 0, 0, 0) == 0 and bool(found.value)


def signal_group(pid: int, number: int) -> None:
    """Signal the group that `pid` leads, or `pid` alone if it leads none. `pid` must not be reaped yet."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def has_failed(pid: int) -> bool:
    """Return whether a child has ended with a status other than 0, without reaping it."""
    try:
        info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return info is not None and not (info.si_code == os.CLD_EXITED and info.si_status == 0)


def status_of(pid: int) -> int | None:
    """Return a child's exit status without reaping it: -N after signal N, None while it runs."""
    try:
        info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    if info is None:
        return None
    return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status


def has_ended(pid: int) -> bool:
    """Return whether a child has ended, without reaping it."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def require_child(pid: int) -> None:
    """Raise `RecoveryError` unless `pid` is a child of this process."""
    try:
        parent = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        parent = 0
    if parent != os.getpid():
        raise RecoveryError(
            f"the warm process {pid} has the parent {parent or 'unknown'}, expected {os.getpid()} (torchrun)"
        )


class OrphanGroups:
    """Process groups whose leader is gone; their members become our children and must be reaped."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._lock = threading.Lock()

    def add(self, group: int) -> None:
        """Reap members of this group from now on. Its leader must already be reaped."""
        with self._lock:
            self._groups.add(group)

    def reap(self) -> tuple[int, ...]:
        """Collect the dead without blocking, and forget groups that have no member left. Returns the collected pids."""
        with self._lock:
            collected = [pid for group in self._groups for pid in reap_group(group)]
            self._groups = {group for group in self._groups if _exists(group)}
        return tuple(collected)


def reap_group(group: int) -> list[int]:
    """Collect the dead children in a process group, its leader included, without blocking. Returns their pids."""
    collected: list[int] = []
    while True:
        try:
            info = os.waitid(os.P_PGID, group, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            return collected
        if info is None:
            return collected
        collected.append(info.si_pid)


def _exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return False  # the number belongs to another group now
    return True


class AdoptedProcess:
    """Replacement for `subprocess.Popen`, as far as torch uses it, for a child that another process has forked."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Return the exit status if the process has ended, else None."""
        with self._lock:
            if self.returncode is None:
                self.returncode = self._collect()
            return self.returncode

    def _collect(self) -> int | None:
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            return _STATUS_UNKNOWN
        return os.waitstatus_to_exitcode(status) if pid == self.pid else None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process. Raises `subprocess.TimeoutExpired` after `timeout` seconds."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # reaped between these two lines
                await_end(self.pid, timeout)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired(f"rank process {self.pid}", timeout or 0.0)
        return status


class AdoptedHandler(SubprocessHandler):
    """torch's handle on one rank, around a process that a template has forked."""

    def __init__(self, pid: int, local_rank: LocalRank, process: subprocess.Popen[bytes] | None = None) -> None:
        # Torch's constructor is not called, because it starts a process.
        self._stdout = None
        self._stderr = None
        self.local_rank_id = local_rank
        self.proc = process or cast("subprocess.Popen[bytes]", AdoptedProcess(pid))

    def close(self, death_sig: signal.Signals | None = None) -> None:
        """Signal the whole group of the rank."""
        if self.proc.poll() is None:
            signal_group(self.proc.pid, death_sig or signal.SIGTERM)
