"""Connections that were accepted and have not shown yet who they are: how many there may be at a time.

Rules:

1. ZeroMQ closes each when its time for a handshake is over. Above `most` the oldest are ended earlier: each costs a
   descriptor, and where none is left no agent comes in, and the thread that serves all of them goes round in vain.
2. Who has said nothing goes first. Who has begun to speak has a table of its own, of the same size: many agents that
   come at once are not taken for silent ones, and silent ones drive out no agent.
3. The descriptors are ZeroMQ's, which may have closed one: its number may be anything of this process by now. So a copy
   is looked at, and only the very socket that was noted is ended: by its inode, a TCP connection to our own port, whose
   peer has sent less than any handshake. It is shut down, never closed; ZeroMQ finds that out and closes it.
4. None of it takes a descriptor, for there may be none left: the copy's place is kept.
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
"""However many descriptors there are: a half-open connection costs memory too."""
FLOOD: Final = 100
"""So many silent connections that end within `WINDOW_S` are told of as one thing."""
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
    """For each of the two tables, in a process that may have so many descriptors."""
    return max(_FEWEST, min(MOST, descriptors // _SHARE))


def least_handshake_bytes(*, secured: bool) -> int:
    """What a peer sends at least before it is let in (ZeroMQ's RFC 23, and RFC 26 for CURVE)."""
    return _GREETING_BYTES + (_HELLO_AND_INITIATE_BYTES if secured else _READY_BYTES)


class HalfOpen:
    """The connections to one port that may be half open, oldest first.

    Attributes:
        port: where we listen; 0 as long as that is not known.
        most: of each of the two kinds.

    """

    def __init__(self, least_bytes: int, most: int) -> None:
        """`least_bytes`: who has sent so many may be through its handshake, and is left alone."""
        self.port, self.most = 0, most
        self._least_bytes = least_bytes
        self._silent: dict[int, int] = {}  # descriptor: inode
        self._begun: dict[int, int] = {}
        self._null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._copy = os.dup(self._null)
        self._kept = [self._null, self._copy]

    def close(self) -> None:
        """Look at nothing any more."""
        self._silent, self._begun = {}, {}
        while self._kept:
            os.close(self._kept.pop())

    def accepted(self, descriptor: int) -> None:
        """Note it. It may be closed already, or another's: that is found out before anything is done to it."""
        self.gone(descriptor)
        with suppress(OSError):
            self._silent[descriptor] = os.fstat(descriptor).st_ino

    def gone(self, descriptor: int) -> None:
        """It has ended."""
        self._silent.pop(descriptor, None)
        self._begun.pop(descriptor, None)

    def trim(self) -> int:
        """End the oldest of those that are too many; how many have ended so."""
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
        """Shut it down if its peer has sent fewer bytes; how many it has sent, or None: it is not that one any more."""
        with suppress(OSError):
            if os.fstat(descriptor).st_ino != inode:  # not copied then: to close a copy of a file ends locks on it
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
            link.getpeername()  # raises for what listens
            if link.getsockname()[1] != self.port:
                return None
            info = link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
            if len(info) < _TCP_INFO_BYTES:
                return None  # a kernel before 4.1 does not tell
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
    """Whether this process has no descriptor left for another connection. Reports that once, until it has had some."""

    def __init__(self) -> None:
        self._looked_s: float | None = None
        self._starved_s: float | None = None
        self._told = False

    def is_recent(self, now_s: float) -> bool:
        """Whether there was none in the last `STARVED_S`: who gave up waiting then is counted only afterwards."""
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
    """Tells of many silent connections once, and again only when they had ended."""

    def __init__(self, most: int, expected: str = "agent of taskd") -> None:
        """`expected`: who connects here by right."""
        self._most, self._expected = most, expected
        self._count = self._total = 0
        self._since_s: float | None = None
        self._told = False

    def take(self, silent: int, now_s: float) -> None:
        """So many more have ended by time or because there were too many."""
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
