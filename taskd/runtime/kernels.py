"""Asks the kernel of a silent node whether its agent still listens: one TCP connection to the port of its store.

The kernel answers for a process that has no time, so a machine under load is not taken for dead; and nobody answers for
one that is gone. A refusal is certain at once; a node that is cut off or switched off costs `TIMEOUT_S`.
"""

import errno
import select
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

TIMEOUT_S: Final = 0.3


@dataclass(frozen=True)
class _Question:
    agent_id: str
    socket: socket.socket
    until_s: float


class Kernels:
    """Questions under way. One thread uses it; nothing blocks."""

    def __init__(self) -> None:
        self._open: list[_Question] = []

    @property
    def pending(self) -> bool:
        """Whether an answer is awaited: call `answers` soon."""
        return bool(self._open)

    def ask(self, agent_id: str, host: str, port: int) -> None:
        """Begin to connect."""
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            connection = socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, protocol)
        except (OSError, UnicodeError):  # the latter for a name that can be none
            connection, address = socket.socket(), ("", 0)  # an answer in any case: nobody can be reached there
        connection.connect_ex(address)
        self._open.append(_Question(agent_id, connection, time.monotonic() + TIMEOUT_S))

    def answers(self) -> list[tuple[str, bool]]:
        """Agents about which something is known now, and whether anybody listens."""
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
        """Forget all questions."""
        for question in self._open:
            question.socket.close()
        self._open = []


def _listening(connection: socket.socket) -> bool | None:
    poller = select.poll()
    poller.register(connection, select.POLLOUT)
    if not poller.poll(0):
        return None
    error = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if error:
        return error == errno.EMFILE  # our own want of descriptors says nothing about the node
    with suppress(OSError):
        connection.getpeername()
        return True
    return False
