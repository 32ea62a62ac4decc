"""Probe of a silent node's kernel: one TCP connection to the port of its store shows whether its agent still listens.

The kernel answers for a process that gets no processor time, so a machine under load does not count as dead. For a
process that is gone nothing answers. A refusal is certain at once; a node that is cut off or switched off costs
`TIMEOUT_S`.

A name is resolved on a thread, with `MOST_NAMES` threads at most: agents report names, and a name server may be slow,
even on purpose. Until the name is resolved there is no answer, and the node's silence alone decides. A name that does
not exist counts as a node on which nothing listens.
"""

import errno
import select
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

TIMEOUT_S: Final = 0.3
MOST_NAMES: Final = 4
_NOWHERE: Final = (socket.AF_INET, ("", 0))
_Address = tuple[int, Any]
"""Family and address of a socket."""


@dataclass(frozen=True)
class _Question:
    agent_id: str
    socket: socket.socket
    until_s: float


class _Name:
    """Name that is being resolved. When its thread has ended, `where` is the address, or None if no server gave it."""

    def __init__(self, host: str, port: int) -> None:
        self.where: _Address | None = None
        self.thread = threading.Thread(target=self._ask, args=(host, port), name="taskd-name", daemon=True)
        self.thread.start()

    def _ask(self, host: str, port: int) -> None:
        try:
            self.where = _resolve(host, port)
        except UnicodeError:  # an impossible name
            self.where = _NOWHERE
        except OSError as error:
            self.where = _NOWHERE if error.errno in (socket.EAI_NONAME, socket.EAI_NODATA) else None


class Kernels:
    """Probes under way. One thread uses it; nothing blocks."""

    def __init__(self) -> None:
        self._open: list[_Question] = []
        self._names: dict[str, _Name] = {}

    @property
    def pending(self) -> bool:
        """True while an answer is awaited: call `answers` soon."""
        return bool(self._open or self._names)

    def ask(self, agent_id: str, host: str, port: int) -> None:
        """Begin to connect, or to resolve the name, unless the name of this agent is being resolved already."""
        try:
            self._connect(agent_id, _resolve(host, port, socket.AI_NUMERICHOST))
        except (OSError, UnicodeError):
            if agent_id not in self._names and len(self._names) < MOST_NAMES:
                with suppress(RuntimeError):  # no further thread can be had
                    self._names[agent_id] = _Name(host, port)

    def _connect(self, agent_id: str, where: _Address) -> None:
        family, address = where
        try:
            connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        except OSError:
            connection, address = socket.socket(), _NOWHERE[1]  # an answer in any case: nothing listens there
        connection.connect_ex(address)
        self._open.append(_Question(agent_id, connection, time.monotonic() + TIMEOUT_S))

    def answers(self) -> list[tuple[str, bool]]:
        """Return the agents with an answer by now, each with whether it listens."""
        for agent_id in [agent_id for agent_id, name in self._names.items() if not name.thread.is_alive()]:
            where = self._names.pop(agent_id).where
            if where is not None:
                self._connect(agent_id, where)
        found, waiting = [], []
        for question in self._open:
            listening = _listening(question.socket)
            if listening is None and time.monotonic() < question.until_s:
                waiting.append(question)
                continue
            found.append((question.agent_id, bool(listening)))
            question.socket.close()
        self._open = waiting
        return found

    def close(self) -> None:
        """Drop all probes. A thread that waits for a name server is left behind."""
        for question in self._open:
            question.socket.close()
        self._open = []


def _resolve(host: str, port: int, flags: int = 0) -> _Address:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)[0]
    return found[0], found[4]


def _listening(connection: socket.socket) -> bool | None:
    poller = select.poll()
    poller.register(connection, select.POLLOUT)
    if not poller.poll(0):
        return None
    error = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if error:
        return error == errno.EMFILE  # our own lack of descriptors is no evidence against the node
    with suppress(OSError):
        connection.getpeername()
        return True
    return False
