"""The rank's end of the socket to its agent: a descriptor among the user's.

Rules:

1. A program may close every descriptor, and its own files then have our number. So a number is used only while it is
   still our socket: its inode is compared each time.
2. A socket that was closed in this way is made anew, and `Hello` is sent again. A thread that waits in the old one
   still receives the packets that the agent had sent there.
3. Two threads use one end: each sends whole packets; one alone receives.
"""

import logging
import os
import socket
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from taskd.errors import LinkError
from taskd.runtime.system.hidden import HiddenThread, forget
from taskd.runtime.system.own_sockets import connect_own
from taskd.runtime.system.packets import receive_packet

logger = logging.getLogger(__name__)


class Lifeline:
    """One process's link to its agent, and the hidden thread that reads it.

    Args:
        connect: called for each connection; raises `LinkError` if there is no agent.
        hello: the first packet of each connection.
        hear: called on the thread with each packet.
        ended: called on the thread, as the last, when the agent has closed the connection or cannot be reached.

    Raises:
        LinkError: the agent does not listen.
    """

    def __init__(
        self,
        connect: Callable[[], socket.socket],
        hello: bytes,
        hear: Callable[[bytes], None],
        ended: Callable[[], None],
    ) -> None:
        self._open = connect
        self._hello = hello
        self._hear = hear
        self._ended = ended
        self._lock = threading.Lock()
        self._over = False
        """True once the agent has closed the connection: there is none any more."""
        self._end = self._connect()

    def listen(self) -> None:
        """Start the thread."""
        self.thread = HiddenThread(partial(self._listen, self._end), "taskd-control")

    def send(self, frame: bytes) -> None:
        """Send one packet. Raises `OSError` or `LinkError` if the agent is gone."""
        end = self._end
        if self._over:
            raise LinkError("the agent has closed its socket; nothing is sent to it any more")
        if end.is_lost():
            end = self._renew(end)
        end.socket.sendall(frame)

    def _listen(self, end: "_End") -> None:
        while frame := end.receive():
            self._hear(frame)
            forget()
            if end.is_lost():
                break
        if end.is_lost():
            try:
                self._renew(end)
            except LinkError as error:
                logger.warning("the script has closed taskd's socket, and another one cannot be had: %s", error)
            else:
                return
        self._over = True
        end.close()
        self._ended()

    def _renew(self, lost: "_End") -> "_End":
        with self._lock:
            if self._end is lost:
                lost.close()
                self._end = self._connect()
                self.listen()
            return self._end

    def _connect(self) -> "_End":
        link = self._open()
        try:
            link.sendall(self._hello)
        except OSError as error:
            link.close()
            raise LinkError(
                f"the agent has closed its socket at once: {error.strerror}; expected it to listen"
            ) from error
        return _End(link)


def to_agent(path: Path, agent_pid: int) -> socket.socket:
    """Connect to the agent that listens there, which is the torchrun `agent_pid`. Raises `LinkError`."""
    try:
        return connect_own(path)
    except OSError as error:
        raise LinkError(
            f"cannot connect to the agent's socket {path}: {error.strerror}; expected the torchrun process "
            f"{agent_pid} to listen there"
        ) from error


class _End:
    """A socket, and the inode that identifies it."""

    def __init__(self, link: socket.socket) -> None:
        self.socket = link
        self._inode = _inode(link.fileno())

    def is_lost(self) -> bool:
        """Return whether other code has closed it."""
        number = self.socket.fileno()
        return number < 0 or _inode(number) != self._inode

    def receive(self) -> bytes:
        """Return the agent's next packet; empty if the agent has gone, or the socket was closed."""
        if self.is_lost():
            return b""
        try:
            return receive_packet(self.socket)
        except OSError:
            return b""

    def close(self) -> None:
        """Close our own socket, and nothing else."""
        if self.is_lost():
            self.socket.detach()
        else:
            self.socket.close()


def _inode(number: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(number)
    except OSError:
        return None
    return found.st_dev, found.st_ino
