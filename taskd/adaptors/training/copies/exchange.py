"""How a copy comes to another node: one TCP connection to the rank that keeps it, none of training's groups.

Rules:

1. The *buddy* of a rank is the one of the same local rank on the next node of the world; whose buddy it is, is its
   *ward*. On one node there is none: a second copy there would not outlive what the first does not.
2. Sending and receiving go on at the same time: all ranks send at once, in a ring.
3. Whoever connects shows a secret from the job's store first.
4. Every wait looks whether it is to end.
"""

import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from secrets import compare_digest, token_hex
from typing import Final, NamedTuple

import msgspec
from torch._C._distributed_c10d import Store

from taskd.adaptors.training.copies.copy_file import CopyHead
from taskd.errors import CopyError
from taskd.wire.kinds import JobRank

_FRAME_BYTES: Final = 256
_LOOK_S: Final = 0.02
"""So long a wait does not look whether it is to end."""
CONNECT_S: Final = 60.0


class Neighbours(NamedTuple):
    """Who keeps a rank's copies, and whose copies it keeps; None on one node."""

    buddy: JobRank | None
    ward: JobRank | None


def neighbours(rank: JobRank, members: Sequence[JobRank], per_node: int) -> Neighbours:
    """Those of one rank of the job in a world of these members, of which each node has `per_node`."""
    places = sorted({member // per_node for member in members})
    at = places.index(rank // per_node)
    before, after = (JobRank(places[(at + way) % len(places)] * per_node + rank % per_node) for way in (-1, 1))
    return Neighbours(None, None) if len(places) == 1 else Neighbours(after, before)


def ready(reads: Sequence[socket.socket], writes: Sequence[socket.socket], limit_s: float) -> tuple[bool, bool]:
    """Wait until one can be read from or written to, at most so long: whether any can, of each.

    None is in both. A process may have thousands of descriptors, which `select.select` would refuse.
    """
    poll = select.poll()
    for sockets, event in ((reads, select.POLLIN), (writes, select.POLLOUT)):
        for one in sockets:
            poll.register(one, event)
    able = {descriptor for descriptor, _ in poll.poll(limit_s * 1e3)}  # one that has failed is: to be told so
    return any(one.fileno() in able for one in reads), any(one.fileno() in able for one in writes)


class Exchange:
    """One rank's connections to buddy and ward.

    Args:
        store: where the ranks of this world find one another.
        stopped: whether to give up.

    Raises:
        CopyError: it was told to stop, or a neighbour is gone.
        OSError: the network.
    """

    def __init__(self, store: Store, host: str, rank: JobRank, near: Neighbours, stopped: Callable[[], bool]) -> None:
        self._stopped = stopped
        self._sockets: list[socket.socket] = []
        try:
            self._connect(store, host, rank, near)
        except BaseException:
            self.close()
            raise

    def swap(
        self, head: CopyHead | None, outgoing: memoryview, room: Callable[[CopyHead], memoryview]
    ) -> CopyHead | None:
        """Give the buddy a copy (None: there is none this time) and take the ward's into `room`; return its head."""
        frame = msgspec.msgpack.encode(head)
        to_send = [memoryview((len(frame).to_bytes(2, "little") + frame).ljust(_FRAME_BYTES, b"\0"))]
        if head is not None:
            to_send.append(outgoing)
        taken = bytearray(_FRAME_BYTES)
        into, theirs, known = memoryview(taken), None, False
        while to_send or into:
            reads = [self._ward] if into else []
            writes = [self._buddy] if to_send else []
            readable, writable = ready(reads, writes, _LOOK_S)
            if self._stopped():
                raise CopyError("told to stop")
            if writable:
                sent = self._buddy.send(to_send[0])
                to_send[0] = to_send[0][sent:]
                if not len(to_send[0]):
                    to_send.pop(0)
            if readable:
                count = self._ward.recv_into(into)
                if not count:
                    raise CopyError("the rank whose copies are kept here is gone")
                into = into[count:]
                if not len(into) and not known:
                    known, theirs = True, _head(taken)
                    into = room(theirs) if theirs is not None else into
        return theirs

    def close(self) -> None:
        """End the connections."""
        for one in self._sockets:
            one.close()

    def _connect(self, store: Store, host: str, rank: JobRank, near: Neighbours) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = self._keep(socket.create_server((host, 0), family=family))
        secret = token_hex(16)
        store.set(f"address/{rank}", f"{listener.getsockname()[0]} {listener.getsockname()[1]} {secret}")
        end_s = time.monotonic() + CONNECT_S
        key = f"address/{near.buddy}"
        while not store.check([key]):
            self._pause(end_s, f"rank {near.buddy} has no address")
        there, port, theirs = store.get(key).decode().split()
        store.delete_key(key)
        self._buddy = self._reach(there, int(port), end_s)
        self._buddy.sendall(bytes.fromhex(theirs))  # less than any buffer
        self._ward = self._accept(listener, bytes.fromhex(secret), end_s, near)
        for one in (self._buddy, self._ward):
            one.setblocking(False)

    def _reach(self, host: str, port: int, end_s: float) -> socket.socket:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        there = self._keep(socket.socket(*address[:3]))
        there.setblocking(False)
        there.connect_ex(address[4])
        while not ready([], [there], 0)[1]:
            self._pause(end_s, f"{host}:{port} does not answer")
        failed = there.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if failed:
            raise OSError(failed, os.strerror(failed), f"{host}:{port}")
        return there

    def _accept(self, listener: socket.socket, secret: bytes, end_s: float, near: Neighbours) -> socket.socket:
        while True:
            while not ready([listener], [], 0)[0]:
                self._pause(end_s, f"rank {near.ward} has not connected")
            connection, _ = listener.accept()
            connection.settimeout(1.0)
            try:
                shown = connection.recv(len(secret), socket.MSG_WAITALL)
            except OSError:
                shown = b""
            if compare_digest(shown, secret):
                return self._keep(connection)
            connection.close()

    def _pause(self, end_s: float, why: str) -> None:
        if self._stopped() or time.monotonic() > end_s:
            raise CopyError(why)
        time.sleep(_LOOK_S)  # between two looks at what another rank does

    def _keep(self, one: socket.socket) -> socket.socket:
        self._sockets.append(one)
        return one


def _head(frame: bytearray) -> CopyHead | None:
    length = int.from_bytes(frame[:2], "little")
    return msgspec.msgpack.decode(frame[2 : 2 + length], type=CopyHead | None)
