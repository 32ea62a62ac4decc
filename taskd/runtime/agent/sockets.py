"""The agent's end of the Unix sockets to the processes of its node.

Rules:

1. SOCK_SEQPACKET: one message a packet (`system.packets`), and the end of a process is the end of its socket.
2. The socket is made in a directory of mode 0700, and has no name from then on (`runtime/folders/nameless.py`), unless
   ranks reach nothing without one. The kernel gives user and pid of a process that connects. Another user is rejected.
   The kernel's pid counts, not the pid in the process's own message.
3. A packet that cannot be decoded is refused. The first one of a connection is logged, and the connection stays open.
"""

import logging
import os
import select
import socket
from contextlib import suppress
from pathlib import Path

from taskd.errors import FrameError, LinkError
from taskd.runtime.folders.nameless import unname
from taskd.runtime.system.own_sockets import peer_of, refuse_strangers
from taskd.runtime.system.packets import send_packet
from taskd.wire.codec import MAX_LOCAL_BYTES, decode_from_local, encode
from taskd.wire.messages import FromLocal, ToLocal

logger = logging.getLogger(__name__)


class Peer:
    """One connected process."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self.pid, _ = peer_of(link)
        self.refused = 0
        """Packets that could not be decoded."""

    def send(self, message: ToLocal) -> bool:
        """Send, without blocking; False if the process is gone or does not read, or the message cannot be sent.

        Any other failure ends the connection: a rank that misses an order must not wait for it.
        """
        try:
            send_packet(self.link, encode(message))
        except BlockingIOError as error:
            logger.debug("nothing can be sent to process %d: %s", self.pid, error)
            return False
        except OSError as error:
            logger.debug("the connection to process %d ends: %s", self.pid, error)
            with suppress(OSError):
                self.link.shutdown(socket.SHUT_RDWR)
            return False
        except FrameError as error:
            logger.error("nothing was sent to process %d: %s", self.pid, error)
            return False
        return True


class LocalServer:
    """All sockets of one agent. With `listens` off no process can connect: `adopt` adds connections made elsewhere.

    With `named` the socket keeps its name.

    Attributes:
        path: path by which this user's processes connect.

    """

    def __init__(self, path: Path, *, listens: bool = True, named: bool = False) -> None:
        self.path = path
        self._entry, self._named = -1, named
        self._told = False
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        self._epoll = select.epoll()
        self._peers: dict[int, Peer] = {}
        if listens:
            self._listen()

    def _listen(self) -> None:
        try:
            self._listener.bind(str(self.path))
            self._listener.listen(1024)
            if not self._named:
                self.path, self._entry = unname(self._listener, self.path)
                self._named = self._entry < 0
        except OSError as error:
            self._listener.close()
            self._epoll.close()
            raise LinkError(
                f"cannot listen on {self.path}: {error.strerror}; check the directory, or set TASKD_RUN_DIR to another "
                "one"
            ) from error
        self._epoll.register(self._listener, select.EPOLLIN)

    @property
    def named(self) -> bool:
        """True if a name in a folder leads to the socket."""
        return self._named

    def fileno(self) -> int:
        """Return a descriptor that is readable when `receive` has something to return."""
        return self._epoll.fileno()

    def receive(self) -> list[tuple[Peer, FromLocal | None]]:
        """Return the new messages, each with its sender; None in place of a message if the process is gone."""
        found: list[tuple[Peer, FromLocal | None]] = []
        self._accept()  # first: messages of a process that came and went since the last call count too
        for fd, _ in self._epoll.poll(0):
            if fd != self._listener.fileno():
                found.extend((self._peers[fd], message) for message in self._read(self._peers[fd]))
                if found and found[-1][1] is None:
                    self.drop(self._peers[fd])
        return found

    def drop(self, peer: Peer) -> None:
        """Close the connection to a process."""
        fd = peer.link.fileno()
        if fd >= 0 and self._peers.pop(fd, None) is not None:
            self._epoll.unregister(fd)
            peer.link.close()

    def hang_up(self) -> None:
        """Close every connection, and accept none any more: each process detects that no agent answers it."""
        self._listener.close()  # first: a process that was not accepted yet detects it too
        for peer in list(self._peers.values()):
            with suppress(OSError):
                self.drop(peer)
        if self._entry >= 0:
            os.close(self._entry)
            self._entry = -1
        if self._named:
            self.path.unlink(missing_ok=True)
            self._named = False

    def close(self) -> None:
        """Close all."""
        self.hang_up()
        self._epoll.close()

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            try:
                refuse_strangers(link, str(self.path))
            except PermissionError as error:
                link.close()
                if not self._told:
                    self._told = True
                    logger.error("refused a connection: %s; further ones are not logged", error)
                continue
            self.adopt(link)

    def adopt(self, link: socket.socket) -> None:
        """Take over a connection to a process."""
        link.setblocking(False)
        os.set_inheritable(link.fileno(), False)
        self._peers[link.fileno()] = Peer(link)
        self._epoll.register(link, select.EPOLLIN)

    def _read(self, peer: Peer) -> list[FromLocal | None]:
        found: list[FromLocal | None] = []
        while True:
            try:
                frame = peer.link.recv(MAX_LOCAL_BYTES)
            except BlockingIOError:
                return found
            except OSError:
                frame = b""
            if not frame:
                return [*found, None]
            try:
                message = decode_from_local(frame)
            except FrameError as error:
                peer.refused += 1
                if peer.refused == 1:
                    logger.error("refused a packet of process %d: %s (further ones are not logged)", peer.pid, error)
                continue
            found.append(message)
