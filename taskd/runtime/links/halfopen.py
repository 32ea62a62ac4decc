"""Limit of connections that were accepted and whose peers have not shown yet who they are.

Rules:

1. ZeroMQ closes each when its time for a handshake is over. Above `most` the oldest are ended earlier, because each
   costs a descriptor. Without a free descriptor, no agent gets in, and the thread that serves all of them spins in
   vain.
2. Connections that have sent nothing go first. Those that have begun to send have a table of their own, of the same
   size. So many agents that come at once are not taken for silent ones, and silent ones drive out no agent.
3. The descriptors are ZeroMQ's, which may have closed one: its number may be any file of this process by now. So a copy
   is inspected, and only the very socket that was recorded is ended. It is identified by its inode, as a TCP connection
   to our own port whose peer has sent less than any handshake. It is shut down, never closed: ZeroMQ detects that and
   closes it.
4. None of this takes a descriptor, because there may be none left: the copy's place is kept.
"""

import logging
import os
import socket
import struct
from contextlib import suppress
from typing import Final

from taskd.runtime.system.descriptors import descriptor_limits

logger = logging.getLogger(__name__)

MOST: Final = 4096
"""Limit whatever the number of descriptors: a half-open connection costs memory too."""
FLOOD: Final = 100
"""Number of silent connections ended within `WINDOW_S` from which they are reported as one flood."""
WINDOW_S: Final = 10.0
STARVED_S: Final = 30.0
_LOOK_S: Final = 1.0
_LULL: Final = 10
_SHARE: Final = 4
_FEWEST: Final = 16
_GREETING_BYTES: Final = 64
_READY_BYTES: Final = 8
_HELLO_AND_INITIATE_BYTES: Final = 202 + 266
_RECEIVED_AT: Final = 128
_TCP_INFO_BYTES: Final = _RECEIVED_AT + 8


def most_half_open(descriptors: int) -> int:
    """Return the limit of each of the two tables, in a process that may have so many descriptors."""
    return max(_FEWEST, min(MOST, descriptors // _SHARE))


def least_handshake_bytes(*, secured: bool) -> int:
    """Return the least bytes that a peer sends before it is let in (ZeroMQ's RFC 23, and RFC 26 for CURVE)."""
    return _GREETING_BYTES + (_HELLO_AND_INITIATE_BYTES if secured else _READY_BYTES)


class HalfOpen:
    """Connections to one port that may be half open, oldest first.

    Attributes:
        port: our listening port; 0 until it is known.
        most: limit of each of the two tables.
    """

    def __init__(self, least_bytes: int, most: int) -> None:
        """Reserve descriptors. A peer that has sent `least_bytes` may be through its handshake, and is left alone."""
        self.port, self.most = 0, most
        self._least_bytes = least_bytes
        self._silent: dict[int, int] = {}  # descriptor: inode
        self._begun: dict[int, int] = {}
        self._null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._copy = os.dup(self._null)
        self._kept = [self._null, self._copy]

    def close(self) -> None:
        """Forget all connections and release the reserved descriptors."""
        self._silent, self._begun = {}, {}
        while self._kept:
            os.close(self._kept.pop())

    def accepted(self, descriptor: int) -> None:
        """Record a connection. It may be closed already, or another's: that is checked before any action on it."""
        self.gone(descriptor)
        with suppress(OSError):
            self._silent[descriptor] = os.fstat(descriptor).st_ino

    def gone(self, descriptor: int) -> None:
        """Forget a connection that has ended."""
        self._silent.pop(descriptor, None)
        self._begun.pop(descriptor, None)

    def trim(self) -> int:
        """End the oldest surplus connections. Returns how many were ended."""
        ended = 0
        while len(self._silent) > self.most:
            descriptor, inode = _oldest(self._silent)
            sent = self._end(descriptor, inode, below=1)
            ended += sent == 0
            if sent is not None and 0 < sent < self._least_bytes:
                self._begun[descriptor] = inode
        while len(self._begun) > self.most:
            sent = self._end(*_oldest(self._begun), below=self._least_bytes)
            ended += sent is not None and sent < self._least_bytes
        return ended

    def _end(self, descriptor: int, inode: int, *, below: int) -> int | None:
        """Shut a connection down if its peer has sent fewer bytes than `below`.

        Returns the bytes that the peer has sent, or None if the descriptor is no longer that connection.
        """
        with suppress(OSError):
            if os.fstat(descriptor).st_ino != inode:  # not copied then: closing a copy of a file ends locks on it
                return None
            os.dup2(descriptor, self._copy, inheritable=False)
            try:
                return self._end_copy(inode, below)
            finally:
                os.dup2(self._null, self._copy, inheritable=False)
        return None

    def _end_copy(self, inode: int, below: int) -> int | None:
        if os.fstat(self._copy).st_ino != inode:
            return None
        link = socket.socket(fileno=self._copy)
        try:
            if link.family not in (socket.AF_INET, socket.AF_INET6) or link.type != socket.SOCK_STREAM:
                return None
            link.getpeername()  # raises for a listening socket
            if link.getsockname()[1] != self.port:
                return None
            info = link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
            if len(info) < _TCP_INFO_BYTES:
                return None  # a kernel before 4.1 does not report it
            sent = int(struct.unpack_from("=Q", info, _RECEIVED_AT)[0])
            if sent < below:
                link.shutdown(socket.SHUT_RDWR)
            return sent
        finally:
            link.detach()


def _oldest(table: dict[int, int]) -> tuple[int, int]:
    descriptor = next(iter(table))
    return descriptor, table.pop(descriptor)


class Starvation:
    """Lack of descriptors for another connection in this process. Reported once, until it has had some."""

    def __init__(self) -> None:
        self._looked_s: float | None = None
        self._starved_s: float | None = None
        self._told = False

    def is_recent(self, now_s: float) -> bool:
        """Return whether there was none in the last `STARVED_S`.

        A peer that gave up waiting in that time is counted as refused, but not logged.
        """
        if self._looked_s is None or now_s - self._looked_s >= _LOOK_S:
            self._looked_s = now_s
            self._look(now_s)
        return self._starved_s is not None and now_s - self._starved_s < STARVED_S

    def _look(self, now_s: float) -> None:
        try:
            os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            self._starved_s = now_s
            if not self._told:
                self._told = True
                soft, hard = descriptor_limits()
                logger.warning(
                    "no descriptor is left for another connection (%s; the limit of this process is %d), expected one "
                    "for each agent: none comes in until some are closed; raise it (ulimit -n, at most %d here)",
                    error.strerror,
                    soft,
                    hard,
                )
        else:
            self._told = False


class Flood:
    """Report of many silent connections: once, and again only when they had ended."""

    def __init__(self, most: int, expected: str = "agent of taskd") -> None:
        """Begin at zero. `expected`: name of the rightful peers."""
        self._most, self._expected = most, expected
        self._count = self._total = 0
        self._since_s: float | None = None
        self._told = False

    def take(self, silent: int, now_s: float) -> None:
        """Count so many more silent connections, ended by time or because there were too many."""
        if self._since_s is None or now_s - self._since_s >= WINDOW_S:
            self._next_window(now_s)
        self._count += silent
        self._total += silent
        if self._count >= FLOOD and not self._told:
            self._told = True
            logger.warning(
                "%d connections that say nothing were closed within %g s, and more come: whoever opens them is no %s. "
                "Whoever is gets in all the same (above %d the oldest are closed at once). Let only the job's nodes "
                "reach this port: a firewall, a NetworkPolicy, a security group (told once until they end)",
                self._count,
                WINDOW_S,
                self._expected,
                self._most,
            )

    def _next_window(self, now_s: float) -> None:
        if self._told and self._count < _LULL:
            self._told = False
            logger.info("the connections that say nothing have ended; they were %d", self._total)
        if not self._told:
            self._total = 0
        self._since_s, self._count = now_s, 0
