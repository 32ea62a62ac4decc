"""Detection of a process's death as early as the kernel reports it, without polling.

Rules:

1. There are two sources. The kernel wakes the life futex in the black box before it tears the memory down. A pidfd
   signals that the process can be reaped. A process without a box, or without a thread for it, has only the pidfd. A
   process without a pidfd is checked every 20 ms or, if no thread can be had, at each call of `events`.
2. The futex shows only that the process is ending. `/proc/PID/stat` gives a signal or a failing status at once. A
   status of 0 does not count before the process is fully gone: it also means "not known yet".
3. A listener polls `fileno()` and then calls `events()`.
"""

import logging
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from taskd.errors import ShimError
from taskd.runtime.agent.teardown import make_way
from taskd.runtime.system.pidfd import LOOK_S, has_ended, open_pidfd

logger = logging.getLogger(__name__)
_EXIT_CODE_FIELD = 52
"""Position of `exit_code` in /proc/PID/stat, counted from 1 (proc(5))."""
_AWAIT_S = 2.0
"""Interval at which a thread that waits for a death checks that the process exists. A box that closes wakes it."""


class LifeFutex(Protocol):
    """Part of a process's black box that reports its death."""

    @property
    def closed(self) -> bool:
        """True if it reports nothing any more."""
        ...

    def await_death(self, timeout_s: float) -> bool:
        """Return whether the process's beat thread has ended within `timeout_s`.

        Raises:
            ShimError: the end cannot be detected by the box.

        """
        ...


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """Event: a process has begun to end (`gone` False) or has ended (`gone` True)."""

    pid: int
    gone: bool


class DeathWatch:
    """Watch over processes of this node."""

    def __init__(self) -> None:
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll = select.epoll()
        self._epoll.register(self._wake, select.EPOLLIN)
        self._dying: deque[int] = deque()
        self._gone: deque[int] = deque()
        self._looked_at: set[int] = set()
        """Processes without a pidfd."""
        self._looks = False
        self._pids: dict[int, int] = {}  # pidfd to pid
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []

    def fileno(self) -> int:
        """Return a descriptor that is readable when `events` has something to return."""
        return self._epoll.fileno()

    def watch(self, pid: int, life: LifeFutex | None) -> None:
        """Watch a process until it is gone. If it is gone and reaped already, the next events contain it."""
        try:
            pidfd = open_pidfd(pid)
        except ProcessLookupError:
            self._tell_gone(pid)
            return
        if pidfd is not None:
            self._pids[pidfd] = pid
            self._epoll.register(pidfd, select.EPOLLIN)
        else:
            self._looked_at.add(pid)
            self._looks = self._looks or self._start(self._look, "taskd-ends")
        if life is not None:
            self._start(self._await, f"taskd-life-{pid}", pid, life)

    def _start(self, target: Callable[..., None], name: str, *args: object) -> bool:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=target, args=args, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            logger.warning("deaths are seen later: no thread %s (%s); allow more processes (ulimit -u)", name, error)
            return False
        self._threads.append(thread)
        return True

    def _tell_gone(self, pid: int) -> None:
        self._gone.append(pid)
        os.eventfd_write(self._wake, 1)

    def tell_again(self, pid: int) -> None:
        """Report the end of a process again with the next `events`. This does not make the descriptor readable."""
        self._gone.append(pid)

    def _look(self) -> None:
        while not self._closed.wait(LOOK_S):
            self._look_once()

    def _look_once(self) -> None:
        for pid in tuple(self._looked_at):
            if has_ended(pid):
                self._looked_at.discard(pid)
                self._tell_gone(pid)

    def events(self) -> list[ProcessEnd]:
        """Return the events since the last call, without blocking."""
        if not self._looks:
            self._look_once()
        found = []
        for fd, _ in self._epoll.poll(0):
            if fd == self._wake:
                with suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
            else:
                found.append(ProcessEnd(self._forget(fd), gone=True))
        while self._dying:
            found.insert(0, ProcessEnd(self._dying.popleft(), gone=False))
        while self._gone:
            found.append(ProcessEnd(self._gone.popleft(), gone=True))
        return found

    def close(self) -> None:
        """Stop watching, and join the threads: each takes `_AWAIT_S` at most, and no time if its box is closed."""
        self._closed.set()
        for thread in self._threads:
            thread.join()
        for pidfd in list(self._pids):
            self._forget(pidfd)
        self._epoll.close()
        os.close(self._wake)

    def _forget(self, pidfd: int) -> int:
        self._epoll.unregister(pidfd)
        os.close(pidfd)
        return self._pids.pop(pidfd)

    def _await(self, pid: int, life: LifeFutex) -> None:
        while not (self._closed.is_set() or life.closed):
            try:
                died = life.await_death(_AWAIT_S)
            except ShimError as error:
                logger.warning("process %d: %s; its death is seen when it is gone", pid, error)
                return
            if died:
                self._dying.append(pid)
                os.eventfd_write(self._wake, 1)
                make_way(pid)
                return
            if not _exists(pid):
                return


def ending_status(pid: int) -> int | None:
    """Return the status of a process that has begun to end: -N for signal N, or its exit code.

    None if it is 0 or not known yet.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    status = int(fields[_EXIT_CODE_FIELD - 3])
    return os.waitstatus_to_exitcode(status) if status else None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
