"""Where a process finds the agent of its rank on this machine: a name of the kernel's, gone with the agent.

Rules:

1. The name is an abstract one: no file is left behind, whatever dies. It holds a digest of the job's secret.
2. The kernel says who knocks. Only processes of this very user are let in.
3. A visit is one question (empty) and one answer (JSON): the socket of the agent, and for the first process of a rank
   of a job that forms its variables too.
"""

import json
import logging
import os
import select
import socket
import struct
from dataclasses import dataclass, field
from typing import Final

from taskd.errors import LinkError

logger = logging.getLogger(__name__)
_CREDENTIALS: Final = struct.Struct("3i")
_MOST_BYTES: Final = 64 << 10
_PATIENCE_S: Final = 30.0


@dataclass(frozen=True)
class DoorAnswer:
    """What a visitor is told. Without `env` it has to wait at the agent's socket until it is given a rank."""

    socket: str
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Visitor:
    """A process that asks for the rank."""

    pid: int
    _link: socket.socket

    def tell(self, answer: DoorAnswer) -> bool:
        """Answer, and let it go; whether it is still there to hear it."""
        try:
            with self._link as link:
                link.sendall(json.dumps({"socket": answer.socket, "env": answer.env}).encode())
        except OSError:
            return False
        return True


class Door:
    """The agent's side."""

    def __init__(self, name: str) -> None:
        """Raises `LinkError` if another agent of the rank is there already."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._listener.bind(_address(name))
        except OSError as error:
            self._listener.close()
            raise LinkError(
                f"the agent of this rank runs on this machine already ({error.strerror}), expected none; ask that one"
            ) from error
        self._listener.listen(64)

    def fileno(self) -> int:
        """Readable when somebody has come."""
        return self._listener.fileno()

    def let_in(self) -> Visitor | None:
        """Who has come; None if it may not."""
        link, _ = self._listener.accept()
        pid, uid, _ = _CREDENTIALS.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if uid != os.getuid():
            logger.error("process %d of user %d asks for a rank, expected user %d; refused", pid, uid, os.getuid())
            link.close()
            return None
        return Visitor(pid, link)

    def close(self) -> None:
        """Nobody can find this agent any more."""
        self._listener.close()


def knock(name: str) -> DoorAnswer | None:
    """Ask the agent of that name; None if there is none on this machine, or it has just gone."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
        try:
            link.connect(_address(name))
        except OSError:
            return None
        poller = select.poll()
        poller.register(link, select.POLLIN)
        frame = link.recv(_MOST_BYTES) if poller.poll(_PATIENCE_S * 1000) else b""
    if not frame:
        return None
    told = json.loads(frame)
    return DoorAnswer(str(told["socket"]), dict(told["env"]))


def _address(name: str) -> str:
    return f"\0taskd/{os.getuid()}/{name}"
