"""Packets of any size from an agent to a process of its node, over a Unix socket (SOCK_SEQPACKET).

Rules:

1. A frame that fits one datagram travels as one. A larger one travels as a file without a name: the datagram carries
   its descriptor.
2. The receiver reads the file and never maps it. So a file that another process cuts short is a bad frame, and no
   fault.
3. Only processes receive files. An agent reads with a plain `recv`, and the kernel closes the descriptors of a packet.
"""

import errno
import os
import socket
from typing import Final

from taskd.runtime.system.memfd import make_memfd
from taskd.wire.codec import MAX_FRAME_BYTES, MAX_LOCAL_BYTES

_CARRIES_FILE: Final = b"\0"
"""The datagram beside a descriptor: an empty one would be the end of the connection."""
_CLOEXEC: Final = 1
_WITHOUT_WAITING: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL


def send_packet(link: socket.socket, frame: bytes) -> None:
    """Send a frame, without blocking. Raises `OSError` if the process is gone, does not read, or no file can be had."""
    if len(frame) <= MAX_LOCAL_BYTES:
        try:
            link.send(frame, _WITHOUT_WAITING)
        except OSError as error:
            if error.errno != errno.EMSGSIZE:  # the system has made send buffers smaller than usual
                raise
        else:
            return
    with open(make_memfd("taskd-packet", _CLOEXEC), "wb") as file:
        file.write(frame)
        file.flush()
        socket.send_fds(link, [_CARRIES_FILE], [file.fileno()], _WITHOUT_WAITING)


def receive_packet(link: socket.socket) -> bytes:
    """Receive a frame; empty if the agent has gone. Raises `OSError`. A frame beyond `MAX_FRAME_BYTES` comes cut."""
    packet, descriptors, _, _ = socket.recv_fds(link, MAX_LOCAL_BYTES + 1, 1, socket.MSG_CMSG_CLOEXEC)
    if not descriptors:
        return packet
    try:
        return b"".join(_read(descriptors[0]))
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _read(descriptor: int) -> list[bytes]:
    pieces: list[bytes] = []
    size_bytes = 0
    while size_bytes <= MAX_FRAME_BYTES and (piece := os.pread(descriptor, MAX_FRAME_BYTES + 1, size_bytes)):
        pieces.append(piece)
        size_bytes += len(piece)
    return pieces
