"""Link over which a rank sends its state to a rank of another node: ZeroMQ sockets with CURVE at both ends.

Rules:

1. Both ends derive both key pairs from the job's secret (`identity.py`). A pair is of one world, one direction and two
   ranks. So of all honest ranks, only that one in that world gets through. Without the key of the job's ranks, nobody
   reads or sends a byte. A liar that has it can pose as any rank.
2. A link sends to one rank and receives from one. Frames are numbered: a missing one ends the link.
3. A link belongs to one thread. A thread of its own serves its port: it decides on each key, and bounds the half-open
   connections. Strangers delay nothing, and cost a process two lines of log, whatever they do.
4. Nothing here waits without a limit. A buddy's address is numeric, so ZeroMQ's thread, whose end `close` awaits,
   queries no resolver.
"""

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

import zmq

from taskd.config.address import Address
from taskd.errors import LinkError
from taskd.runtime.links.gate import Gate
from taskd.runtime.links.halfopen import Flood, HalfOpen, least_handshake_bytes
from taskd.runtime.links.identity import KeyPair, keys_of_end
from taskd.runtime.links.links import KERNEL_ASKS
from taskd.runtime.links.listening import bind
from taskd.runtime.links.monitor import Connections, events, watch
from taskd.runtime.system.hidden import ZEROMQ_NAMES, ZEROMQ_NUMBER, HiddenThread, forget

logger = logging.getLogger(__name__)
FRAME_BYTES: Final = 256 << 10
_QUEUED: Final = 8
_HANDSHAKE_MS: Final = 5_000
_RETRY_MS, _MOST_RETRY_MS = 100, 1_000
_HALF_OPEN: Final = 64
"""Limit of half-open connections: one rank is expected, and descriptors are the script's."""
_BACKLOG: Final = 1024
_DESCRIPTORS: Final = 32
"""Number of descriptors, more than one link needs."""
_NUMBER_BYTES: Final = 8
_CLOCK_OF_THREAD: Final = 6
"""Clock of a thread's processor time, with the thread's number (the kernel's CPUCLOCK_PERTHREAD and CPUCLOCK_SCHED)."""
_REFUSED: Final = (zmq.Event.HANDSHAKE_FAILED_AUTH, zmq.Event.HANDSHAKE_FAILED_PROTOCOL)


class Ends(NamedTuple):
    """A rank, and the ranks at the other ends of its link: `buddy` receives, `ward` sends. `world` is their world."""

    world: str
    own: int
    buddy: int
    ward: int


class PeerLink:
    """One rank's connection to its buddy, and that from its ward.

    Args:
        key: key of the job's ranks.
        ends: the ranks at both ends.
        host: the own address, at which the ward connects.

    Raises:
        LinkError: nothing can listen there.
        OSError: there are too few descriptors.
    """

    def __init__(self, key: str, ends: Ends, host: str) -> None:
        self._sent = self._received = self._task = 0
        self._up = False
        self.trouble = ""
        """Reason why nothing more can be sent; "" if it can."""
        self._port: _Port | None = None
        self._sockets: list[zmq.Socket[bytes]] = []
        _check_descriptors()
        self._context = zmq.Context()
        self._context.set(zmq.THREAD_NAME_PREFIX, ZEROMQ_NUMBER)
        try:
            self._out, self._dialled = self._socket(zmq.PUSH)
            self._into, heard = self._socket(zmq.PULL)
            gate = self._secure(key, ends)
            self.address: Final = bind(self._into, Address(host, 0))
            self._port = _Port(gate, heard, self.address.port)
        except BaseException as error:
            self.close()
            if isinstance(error, zmq.ZMQError):
                raise LinkError(f"ZeroMQ has no room for a connection of this rank: {error.strerror}") from error
            raise

    def connect(self, address: Address) -> None:
        """Begin to connect to the buddy. Raises `LinkError` if nobody can have that address."""
        assert address.is_numeric
        self._out.setsockopt(zmq.IPV6, int(":" in address.host))
        try:
            self._out.connect(address.endpoint)
        except zmq.ZMQError as error:
            raise LinkError(f"cannot connect to {address}: {error.strerror}") from error

    def send(self, data: bytes | memoryview) -> bool:
        """Send a frame of at most `FRAME_BYTES`. Returns False if the buddy has not let this rank in, or is behind."""
        try:
            self._out.send_multipart([self._sent.to_bytes(_NUMBER_BYTES, "little"), data], zmq.NOBLOCK)
        except zmq.Again:
            return False
        self._sent += 1
        return True

    def receive(self) -> memoryview | None:
        """Return the ward's next frame; None if it is not there yet.

        Raises `LinkError` if one before it has been lost.
        """
        try:
            frames = self._into.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        if len(frames) != 2 or frames[0].bytes != self._received.to_bytes(_NUMBER_BYTES, "little"):
            raise LinkError("what the rank has sent whose copies are kept here did not come whole")
        self._received += 1
        return frames[1].buffer

    def wait(self, *, reads: bool, writes: bool, limit_s: float) -> None:
        """Wait for a frame to receive or for room to send, at most `limit_s` seconds; then check for trouble."""
        poller = zmq.Poller()
        poller.register(self._into, zmq.POLLIN * reads)
        poller.register(self._out, zmq.POLLOUT * writes)
        poller.register(self._dialled, zmq.POLLIN)
        poller.poll(round(limit_s * 1e3))
        for event, _ in events(self._dialled):
            if event == zmq.Event.HANDSHAKE_SUCCEEDED:
                self._up = True
            elif event in _REFUSED:
                self.trouble = "who listens where the rank that keeps copies should does not know this rank's key"
            elif event == zmq.Event.DISCONNECTED and self._up:
                self.trouble = "the rank that keeps copies is gone"

    def busy_s(self) -> float:
        """Return the processor time of the thread that encrypts and decrypts, in seconds; 0 until it is known."""
        with contextlib.suppress(OSError):
            self._task = self._task or next(_own_tasks(), 0)
            return time.clock_gettime(~self._task << 3 | _CLOCK_OF_THREAD) if self._task else 0.0
        return 0.0

    def close(self) -> None:
        """End both connections. Unsent frames are dropped. A second call does nothing."""
        port, self._port = self._port, None
        if port is not None:
            port.close()
        while self._sockets:
            one = self._sockets.pop(0)
            if one.type in (zmq.PUSH, zmq.PULL):
                one.disable_monitor()
            one.close(0)
        self._context.term()

    def _socket(self, kind: int) -> "tuple[zmq.Socket[bytes], zmq.Socket[bytes]]":
        """Return a new socket, and one that receives the events of its connections."""
        one: zmq.Socket[bytes] = self._context.socket(kind)
        self._sockets.append(one)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.MAXMSGSIZE, 2 * FRAME_BYTES),  # encrypted ones are longer
            (zmq.SNDHWM, _QUEUED),
            (zmq.RCVHWM, _QUEUED),
            (zmq.HANDSHAKE_IVL, _HANDSHAKE_MS),
            (zmq.IMMEDIATE, 1),
            (zmq.RECONNECT_IVL, _RETRY_MS),
            (zmq.RECONNECT_IVL_MAX, _MOST_RETRY_MS),
            (zmq.BACKLOG, _BACKLOG),
            *KERNEL_ASKS,
        ):
            one.setsockopt(option, value)
        self._sockets.append(watch(self._context, one))
        return one, self._sockets[-1]

    def _secure(self, key: str, ends: Ends) -> Gate:
        outgoing, incoming = (ends.world, ends.own, ends.buddy), (ends.world, ends.ward, ends.own)
        own = _keys(key, "sends", *outgoing)
        self._out.setsockopt(zmq.CURVE_PUBLICKEY, own.public)
        self._out.setsockopt(zmq.CURVE_SECRETKEY, own.secret)
        self._out.setsockopt(zmq.CURVE_SERVERKEY, _keys(key, "receives", *outgoing).public)
        listener, welcome = _keys(key, "receives", *incoming), _keys(key, "sends", *incoming)
        gate = Gate(self._context, self._into, listener.secret, welcome.public)
        self._sockets.append(gate.socket)
        return gate


class _Port:
    """Server of one link's port, on a thread of its own."""

    _told: ClassVar[set[str]] = set()
    """Reports about strangers that this process has made, over all its links."""
    _flood: ClassVar[Flood] = Flood(_HALF_OPEN, "rank of this job")

    def __init__(self, gate: Gate, monitor: "zmq.Socket[bytes]", port: int) -> None:
        self._gate, self._monitor, self._number = gate, monitor, port
        half_open = HalfOpen(least_handshake_bytes(secured=True), _HALF_OPEN)
        half_open.port = port
        self._connections = Connections(monitor, half_open, time.monotonic, self._flood)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closing = False
        self._thread = HiddenThread(self._run, "taskd-port")

    def close(self) -> None:
        """Stop serving the port. Its sockets are the caller's again."""
        self._closing = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        os.close(self._wake)

    def _run(self) -> None:
        poller = zmq.Poller()
        for one in (self._gate.socket, self._monitor, self._wake):
            poller.register(one, zmq.POLLIN)
        try:
            while not self._closing:
                poller.poll()
                self._gate.answer()
                self._count(self._connections.refused())
        finally:
            self._connections.close()

    def _count(self, refused: int) -> None:
        if refused and "stranger" not in self._told:
            self._told.add("stranger")
            logger.warning(
                "refused a connection to port %d, at which a rank of another node brings copies of its state: whoever "
                "came did not show the key of that rank. Let only the job's nodes reach this node (further ones are "
                "not logged)",
                self._number,
            )
        forget()


def _keys(key: str, role: str, world: str, sender: int, receiver: int) -> KeyPair:
    """Return the keys of one end of one connection."""
    return keys_of_end(key, f"{role}, {world}, from rank {sender} to rank {receiver}")


def _check_descriptors() -> None:
    """Raise `OSError` if too few are left: ZeroMQ would end the process for want of one."""
    kept: list[int] = []
    try:
        kept.extend(os.eventfd(0, os.EFD_CLOEXEC) for _ in range(_DESCRIPTORS))
    finally:
        for one in kept:
            os.close(one)


def _own_tasks() -> Iterator[int]:
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            if (task / "comm").read_text().startswith(f"{ZEROMQ_NAMES}IO"):
                yield int(task.name)
