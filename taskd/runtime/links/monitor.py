"""ZeroMQ's events on the connections of a socket, and the reactions to them.

Rules:

1. A refused TCP connection (nobody there) is left to ZeroMQ, which dials again after 0.1 to 1 s. It is no trouble.
2. A connection that ends is dialled again by us: at once if it was established, after `REDIAL_S` if it ended during its
   handshake. Left alone, ZeroMQ would come back never or ten times a second, depending on the cause.
3. Two such ends in a row are trouble, logged once until a handshake succeeds. One may be a manager that is stopping.
4. A host given by name is tried by IPv4 first, then by IPv6, in turn. The name is resolved anew at each try.
5. While the queue of events is full, ZeroMQ's own thread waits, and all connections with it. Code that ends the watch
   then waits for that thread forever. So the queue has no limit, holds only used events, and is read in portions.
"""

import errno
import ipaddress
import logging
import struct
from collections.abc import Callable, Iterator
from typing import Final

import zmq

from taskd.config.address import LOOPBACK, Address
from taskd.runtime.links.halfopen import Flood, HalfOpen, Starvation

logger = logging.getLogger(__name__)

REDIAL_S: Final = 0.5
_RETRY_MS: Final = 100
_MAX_RETRY_MS: Final = 1_000
_CONNECT_MS: Final = 3_000
_TRIES_PER_FAMILY: Final = 5
_FAILURES_FOR_TROUBLE: Final = 2
FAILED: Final = (
    zmq.Event.HANDSHAKE_FAILED_AUTH,
    zmq.Event.HANDSHAKE_FAILED_NO_DETAIL,
    zmq.Event.HANDSHAKE_FAILED_PROTOCOL,
)
_WATCHED: Final = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_CONNECT_RETRIED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)
_ENDPOINT: Final = "inproc://taskd.monitor."
_EVENTS_PER_CALL: Final = 512


def watch(context: "zmq.Context[zmq.Socket[bytes]]", socket: "zmq.Socket[bytes]") -> "zmq.Socket[bytes]":
    """Return a socket that receives the events of this socket's connections."""
    endpoint = f"{_ENDPOINT}{socket.underlying}"
    socket.monitor(endpoint, _WATCHED)
    monitor = context.socket(zmq.PAIR)
    monitor.setsockopt(zmq.RCVHWM, 0)
    monitor.connect(endpoint)
    return monitor


def events(monitor: "zmq.Socket[bytes]") -> Iterator[tuple[int, int]]:
    """Yield the events that are there now, each with its value; bounded, so that a flood cannot hold the loop."""
    for _ in range(_EVENTS_PER_CALL):
        try:
            told, _endpoint = monitor.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
        yield struct.unpack("=hi", told)


class Connections:
    """Counter of connections to a listening socket that ended before their handshake. Bounds the half-open ones."""

    def __init__(
        self,
        monitor: "zmq.Socket[bytes]",
        half_open: HalfOpen,
        clock: Callable[[], float],
        flood: Flood | None = None,
    ) -> None:
        """Count from zero. `flood`: reports many silent connections; by default one of its own."""
        self._monitor, self._half_open, self._clock = monitor, half_open, clock
        self._flood, self._starvation = flood or Flood(half_open.most), Starvation()
        self._open = 0  # accepted, handshake not done
        self._counted = False  # the failure whose DISCONNECTED comes next is counted already

    def close(self) -> None:
        """Stop bounding half-open connections."""
        self._half_open.close()

    @property
    def starved(self) -> bool:
        """True if agents could not be let in lately for want of descriptors."""
        return self._starvation.is_recent(self._clock())

    def refused(self) -> int:
        """Return how many connections have ended before their handshake since the last call."""
        before = silent = 0
        for event, value in events(self._monitor):
            if event == zmq.Event.ACCEPTED:
                self._open += 1
                self._half_open.accepted(value)
            elif event == zmq.Event.HANDSHAKE_SUCCEEDED:
                self._open = max(0, self._open - 1)
            elif event in FAILED or (event == zmq.Event.DISCONNECTED and not self._counted and self._open):
                before += 1
                self._open = max(0, self._open - 1)
            if event == zmq.Event.DISCONNECTED:
                self._half_open.gone(value)
            silent += event == zmq.Event.HANDSHAKE_FAILED_NO_DETAIL and value == errno.EAGAIN
            self._counted = event in FAILED
        self._flood.take(silent + self._half_open.trim(), self._clock())
        return before


class Dial:
    """Connection of one socket to one address: dials it, and keeps its state."""

    def __init__(
        self,
        socket: "zmq.Socket[bytes]",
        monitor: "zmq.Socket[bytes]",
        address: Address,
        *,
        job_id: str | None,
        clock: Callable[[], float],
    ) -> None:
        """Begin to connect. `job_id` is our own, None if there is no secret."""
        self.connected = False
        self.trouble: str | None = None
        self._socket, self._monitor, self._clock, self._job_id = socket, monitor, clock, job_id
        self._address = Address(LOOPBACK, address.port) if address.host == "localhost" else address
        self._ipv6 = ":" in address.host
        self._tries = self._failures = 0
        self._redial_at_s: float | None = None
        socket.setsockopt(zmq.RECONNECT_IVL, _RETRY_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, _MAX_RETRY_MS)
        socket.setsockopt(zmq.CONNECT_TIMEOUT, _CONNECT_MS)
        self._connect()

    def advance(self) -> None:
        """Process the events, and dial again if it is time."""
        for event, value in events(self._monitor):
            self._take(event, value)
        if self._redial_at_s is not None and self._clock() >= self._redial_at_s:
            self._connect()

    def _take(self, event: int, value: int) -> None:
        if event == zmq.Event.HANDSHAKE_SUCCEEDED:
            self.connected, self.trouble = True, None
            self._tries = self._failures = 0
        elif event == zmq.Event.CONNECT_RETRIED and self._redial_at_s is None:
            self._tries += 1
            if self._tries >= _TRIES_PER_FAMILY and not _is_numeric(self._address.host):
                self._ipv6, self._tries = not self._ipv6, 0
                self._hang_up(after_s=0.0)
        elif event == zmq.Event.DISCONNECTED and self.connected:
            self.connected = False
            self._hang_up(after_s=0.0)
        elif event in FAILED or event == zmq.Event.DISCONNECTED:
            self._failed(event, value)

    def _failed(self, event: int, value: int) -> None:
        """Handle a failed handshake. The DISCONNECTED after a named failure arrives here too, and finds us hung up."""
        if self._redial_at_s is not None:
            return
        self._failures += 1
        self._hang_up(after_s=REDIAL_S)
        if self._failures >= _FAILURES_FOR_TROUBLE and self.trouble is None:
            self.trouble = self._explain(event, value)
            logger.warning("%s; taskd keeps trying", self.trouble)

    def _explain(self, event: int, value: int) -> str:
        if event == zmq.Event.HANDSHAKE_FAILED_NO_DETAIL and value == errno.EAGAIN:
            return (
                f"who listens at {self._address} does not answer: a manager that hangs or has no descriptor left (its "
                "log says so), or no manager at all"
            )
        if event == zmq.Event.DISCONNECTED:
            return (
                f"who listens at {self._address} is no manager of taskd: set TASKD_MANAGER to the manager's host:port"
            )
        if self._job_id is not None:
            return (
                f"the manager at {self._address} refused our secret, or has none, or manages another job than "
                f"{self._job_id!r} (secret or job id differ; its log names its own): give manager and agents the same "
                "TASKD_JOB_ID and TASKD_SECRET (or TASKD_SECRET_FILE), or where no secret is given the same user and "
                "TASKD_RUN_DIR"
            )
        return (
            f"the manager at {self._address} refused us because we have no secret: set its TASKD_SECRET (or "
            "TASKD_SECRET_FILE) here too"
        )

    def _hang_up(self, after_s: float) -> None:
        self._redial_at_s = self._clock() + after_s
        try:
            self._socket.disconnect(self._address.endpoint)
        except zmq.ZMQError as error:
            if error.errno != errno.ENOENT:  # ZeroMQ has given this connection up by itself
                raise

    def _connect(self) -> None:
        self._redial_at_s = None
        self._socket.setsockopt(zmq.IPV6, int(self._ipv6))
        self._socket.connect(self._address.endpoint)


class WithinProcess:
    """Replacement for `Dial` if the manager's socket is in this process: connected as long as both are open."""

    connected: Final = True
    trouble: Final = None

    def advance(self) -> None:
        """Do nothing: such a connection has no events."""


def _is_numeric(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
