"""Unix sockets whose two ends belong to one user, as the kernel attests (SO_PEERCRED).

A path or a name proves nothing. When its owner has died, any user of the machine can take a name of the kernel's. In a
directory that all may write to, any user can make a folder of the same name.
"""

import errno
import os
import socket
import struct
from pathlib import Path
from typing import Final

_CREDENTIALS: Final = struct.Struct("3i")


def peer_of(link: socket.socket) -> tuple[int, int]:
    """Return pid and user of the other end: the process that connected, or that began to listen."""
    pid, uid, _ = _CREDENTIALS.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid


def refuse_strangers(link: socket.socket, where: str) -> None:
    """Raise `PermissionError` if the other end of a connection belongs to another user."""
    _, uid = peer_of(link)
    if uid != os.geteuid():
        raise PermissionError(
            errno.EPERM, f"user {uid} is at the other end, expected user {os.geteuid()}; nothing was said to it", where
        )


def connect_own(path: str | Path) -> socket.socket:
    """Connect to a socket at which a process of this user listens. Raises `OSError`; `PermissionError` for others'."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        link.connect(str(path))
        refuse_strangers(link, str(path))
    except BaseException:
        link.close()
        raise
    return link
