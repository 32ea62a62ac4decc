"""The two ends of the link between agents and manager: ZeroMQ sockets that send and receive whole messages.

Rules:

1. A peer's input never raises here. It is refused, counted in `refused`, and logged once per kind and peer.
2. A link keeps no history: nothing is queued for an absent peer, because senders repeat their newest state.
3. A link belongs to one thread. Its loop registers all of `sockets` with a poller. It calls `receive()` when one is
   readable and at least at each heartbeat. Handshakes and reconnections advance only there.
4. With a secret both ends use CURVE and accept only the other role's key (ZAP). Without one both use NULL, on loopback.
   Keys are derived from the secret and the job's name (`identity.py`).
5. An agent and the manager in its own process share a context, which nobody else reaches. Their messages pass from
   thread to thread (inproc). Over TCP each waits for two more threads.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Final, NewType, TypeVar

import zmq

from taskd.config.address import Address
from taskd.config.security import Security
from taskd.runtime.links.gate import Gate
from taskd.runtime.links.halfopen import HalfOpen, least_handshake_bytes, most_half_open
from taskd.runtime.links.identity import Role, keys_from_secret, peers_key
from taskd.runtime.links.listening import bind
from taskd.runtime.links.monitor import Connections, Dial, WithinProcess, watch
from taskd.runtime.system.descriptors import descriptor_limits
from taskd.wire import codec
from taskd.wire.messages import FromAgent, FromManager

logger = logging.getLogger(__name__)

Peer = NewType("Peer", bytes)
"""Sender of a message, as the manager's socket names it: one connection of one agent."""

STRANGER: Final = "handshake"
"""Key of `refused` for connections that ended before the peer had shown its right to the link."""

_M = TypeVar("_M")
_L = TypeVar("_L", bound="_Link")
_INSIDE_ENDPOINT: Final = "inproc://taskd-manager"
_MAX_MESSAGE_BYTES: Final = 2 * codec.MAX_FRAME_BYTES
"""Beyond it ZeroMQ cuts the connection; up to it the codec refuses the frame and can name the sender."""
_QUEUE_MESSAGES: Final = 16
_AGENT_QUEUE_MESSAGES: Final = 4
"""Queue of each agent at the manager, for its messages of one moment. More waits in the agent's own memory."""
_MAX_FRAMES_PER_CALL: Final = 256
_MAX_BYTES_PER_CALL: Final = 4 * codec.MAX_FRAME_BYTES
"""Limit of all messages together, because nothing else is done while they are read. 256 honest reports have 1 MB."""
_PARTS: Final = 2
"""Parts of a message, with the name of its sender."""
_MAX_LOGGED: Final = 256
_HANDSHAKE_MS: Final = 5_000
_BACKLOG: Final = 4_096
KERNEL_ASKS: Final = (
    (zmq.TCP_KEEPALIVE, 1),
    (zmq.TCP_KEEPALIVE_IDLE, 2),
    (zmq.TCP_KEEPALIVE_INTVL, 2),
    (zmq.TCP_KEEPALIVE_CNT, 3),
    (zmq.TCP_MAXRT, 8_000),
)
"""Options that end a connection 8 s after its other end has vanished.

ZeroMQ's own heartbeats are not used. libzmq 4.3.5 aborts when it must send one to a peer that has hung up while its
messages wait in the queue.
"""


class Context:
    """ZeroMQ's context of one link, or of the two links that an embedded manager has with its agent.

    A context has a descriptor or two for each of its threads. It ends with the last link that uses it.
    """

    def __init__(self) -> None:
        self.zmq: Final = zmq.Context()
        self._lock = threading.Lock()
        self._users = 0

    def enter(self) -> None:
        """Count one more link."""
        with self._lock:
            self._users += 1

    def leave(self) -> None:
        """Count one link less, whose sockets are closed. The last one ends the context."""
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last:
            self.zmq.term()


class _Link:
    """Common part of both ends: one socket, its monitor, and the count of refusals."""

    def __init__(self, kind: int, security: Security, context: Context | None = None) -> None:
        self.refused: Counter[str] = Counter()
        """Frames and connections refused so far, by `codec.Fault` value or `STRANGER`."""
        self._logged: set[tuple[str, str]] = set()
        self.context: Final = context or Context()
        self.context.enter()
        self._socket: zmq.Socket[bytes] = self.context.zmq.socket(kind)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, _MAX_MESSAGE_BYTES)
        self._socket.setsockopt(zmq.SNDHWM, _QUEUE_MESSAGES)
        self._socket.setsockopt(zmq.RCVHWM, _QUEUE_MESSAGES)
        self._socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        for option, value in KERNEL_ASKS:
            self._socket.setsockopt(option, value)
        self._monitor = watch(self.context.zmq, self._socket)
        self._secured = security.secret is not None
        self._job_id = security.job_id

    @property
    def sockets(self) -> tuple["zmq.Socket[bytes]", ...]:
        """Sockets that become readable when `receive()` has work."""
        return (self._socket, self._monitor)

    def join(self, poller: zmq.Poller) -> None:
        """Register the sockets of this link with a poller."""
        for socket in self.sockets:
            if socket not in poller:
                poller.register(socket, zmq.POLLIN)

    def poll(self, timeout_s: float) -> bool:
        """Wait until `receive()` has work, at most `timeout_s` seconds. Returns whether it has."""
        poller = zmq.Poller()
        self.join(poller)
        return bool(poller.poll(max(0, round(timeout_s * 1000))))

    def close(self, flush_s: float = 0.0) -> None:
        """Close for good. Messages that were sent but have not left get `flush_s` seconds more.

        Messages that the peer has not read by then can be lost if it sends something meanwhile. Nobody reads that, and
        the kernel resets the connection.
        """
        self._socket.disable_monitor()
        for socket in set(self.sockets) - {self._socket}:
            socket.close(0)
        self._socket.close(round(flush_s * 1000))
        self.context.leave()

    def __enter__(self: _L) -> _L:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _frames(self) -> Iterator[list[zmq.Frame]]:
        """Yield the messages that are there now, each as its frames.

        They are bounded in number and sum, so that no flood holds the loop.
        """
        left = _MAX_BYTES_PER_CALL
        for _ in range(_MAX_FRAMES_PER_CALL):
            if left <= 0 or not self._socket.poll(0):
                return
            frames, size_bytes = self._read()
            left -= size_bytes
            yield frames

    def _read(self) -> tuple[list[zmq.Frame], int]:
        """Read one message and its size. If it has more parts than any of taskd's, the rest is dropped as it comes."""
        frames = [self._socket.recv(zmq.NOBLOCK, copy=False)]
        size_bytes = len(frames[0])
        while frames[-1].more:
            frame = self._socket.recv(zmq.NOBLOCK, copy=False)
            size_bytes += len(frame)
            if len(frames) > _PARTS:
                frames[-1] = frame
            else:
                frames.append(frame)
        return frames, size_bytes

    def _decoded(self, frames: list[zmq.Frame], decode: Callable[[bytes], _M]) -> _M | None:
        try:
            if len(frames) != 1:
                raise codec.BadFrameError(
                    codec.FrameFault.CONTENT, "found a message of several parts, expected 1: the peer is not taskd"
                )
            return decode(frames[0].bytes)
        except codec.BadFrameError as error:
            self.refuse(error.fault.value, f"a frame from {_peer_host(frames)}", str(error))
            if error.fault is codec.FrameFault.VERSION:
                self._met_another_version(error)
            return None

    def _met_another_version(self, error: codec.BadFrameError) -> None:
        """Handle a peer with our secret that is a taskd of another wire version."""

    def refuse(self, kind: str, what: str, reason: str) -> bool:
        """Count a refusal. Returns whether it was logged, as the first one of this kind and peer."""
        self.refused[kind] += 1
        if (kind, what) in self._logged or len(self._logged) >= _MAX_LOGGED:
            return False
        self._logged.add((kind, what))
        logger.warning("refused %s: %s (further ones of this kind are only counted)", what, reason)
        return True


class ManagerSocket(_Link):
    """Manager's end: listens, and serves any number of agents."""

    def __init__(self, listen: Address, security: Security) -> None:
        """Listen. Port 0 takes a free one; see `address`.

        Raises `SecretError` if the address needs a secret, `LinkError` if it cannot be bound.
        """
        security.check(listen, "listen on")
        super().__init__(zmq.ROUTER, security)
        most = most_half_open(descriptor_limits()[0])
        self._half_open = HalfOpen(least_handshake_bytes(secured=self._secured), most)
        self._connections = Connections(self._monitor, self._half_open, time.monotonic)
        self._gate: Gate | None = None
        self._speaker = Peer(b"")
        """Sender of the message that is being read."""
        try:
            self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
            self._socket.setsockopt(zmq.BACKLOG, _BACKLOG)
            self._socket.setsockopt(zmq.RCVHWM, _AGENT_QUEUE_MESSAGES)
            if security.secret is not None:
                self._secure(security.secret)
            self.address = bind(self._socket, listen)
            self._socket.bind(_INSIDE_ENDPOINT)
            self._half_open.port = self.address.port
        except BaseException:
            self.close()
            raise

    @property
    def sockets(self) -> tuple["zmq.Socket[bytes]", ...]:
        """Sockets that become readable when `receive()` has work."""
        return super().sockets if self._gate is None else (*super().sockets, self._gate.socket)

    def close(self, flush_s: float = 0.0) -> None:
        """Close for good, as every link does."""
        super().close(flush_s)
        self._half_open.close()

    def receive(self) -> list[tuple[Peer, FromAgent]]:
        """Return all messages that are there now. Never waits, and never raises because of a peer."""
        if self._gate is not None:
            self._gate.answer()
        starved = self._connections.starved
        for _ in range(self._connections.refused()):
            if starved:  # perhaps the peer has given up before it could be let in
                self.refused[STRANGER] += 1
                continue
            self.refuse(
                STRANGER,
                "a connection",
                f"it ended before the peer had shown the secret of job {self._job_id!r}; either the peer has another "
                "secret or job id (its own log says so), or it is no agent of taskd",
            )
        messages: list[tuple[Peer, FromAgent]] = []
        for peer, *frames in self._frames():
            self._speaker = Peer(peer.bytes)
            message = self._decoded(frames, codec.decode_from_agent)
            if message is not None:
                messages.append((self._speaker, message))
        return messages

    def _met_another_version(self, error: codec.BadFrameError) -> None:
        """Answer with our own version, which the peer's codec names in its log."""
        self._send(self._speaker, codec.HEADER)

    def send(self, peer: Peer, message: FromManager) -> bool:
        """Send to one agent. Returns False if its connection is gone or it does not read (it will ask again)."""
        frame = self._frame(message)
        return frame is not None and self._send(peer, frame)

    def send_all(self, peers: Iterable[Peer], message: FromManager) -> None:
        """Send to all of them, as `send` does. The message is encoded once."""
        frame = self._frame(message)
        if frame is not None:
            for peer in peers:
                self._send(peer, frame)

    def _frame(self, message: FromManager) -> bytes | None:
        """Encode a message; None if it is too long: the peers' reports together may exceed a message."""
        try:
            return codec.encode(message)
        except codec.BadFrameError as error:
            self.refuse(error.fault.value, f"to send {type(message).__name__}", str(error))
            return None

    def _send(self, peer: Peer, frame: bytes) -> bool:
        try:
            self._socket.send_multipart([peer, frame], zmq.NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return False
        return True

    def _secure(self, secret: bytes) -> None:
        own = keys_from_secret(secret, Role.MANAGER, self._job_id).secret
        theirs = keys_from_secret(secret, Role.AGENT, self._job_id).public
        self._gate = Gate(self.context.zmq, self._socket, own, theirs)


class AgentSocket(_Link):
    """Agent's end: connects to the manager, and again whenever the connection is lost."""

    def __init__(
        self,
        manager: Address,
        security: Security,
        clock: Callable[[], float] = time.monotonic,
        context: Context | None = None,
    ) -> None:
        """Begin to connect, without waiting. Raises `SecretError` if the address needs a secret.

        `context` is that of the manager's own socket, if this process runs it: then nothing is sent to the address.
        """
        security.check(manager, "connect to")
        super().__init__(zmq.DEALER, security, context)
        self._socket.setsockopt(zmq.IMMEDIATE, 1)
        self._manager, self._version_trouble = manager, ""
        self.peers_key: Final = peers_key(security.secret, security.job_id) if security.secret is not None else ""
        """Key by which the ranks of this node recognize those of others; "" without a secret."""
        self._dial: Dial | WithinProcess = WithinProcess()
        if context is not None:
            self._socket.connect(_INSIDE_ENDPOINT)
            return
        if security.secret is not None:
            own = keys_from_secret(security.secret, Role.AGENT, self._job_id)
            theirs = keys_from_secret(security.secret, Role.MANAGER, self._job_id)
            self._socket.setsockopt(zmq.CURVE_PUBLICKEY, own.public)
            self._socket.setsockopt(zmq.CURVE_SECRETKEY, own.secret)
            self._socket.setsockopt(zmq.CURVE_SERVERKEY, theirs.public)
        job_id = self._job_id if self._secured else None
        self._dial = Dial(self._socket, self._monitor, manager, job_id=job_id, clock=clock)

    @property
    def connected(self) -> bool:
        """True if the manager has accepted us and the connection stands (as of the last `receive()`)."""
        return self._dial.connected

    @property
    def trouble(self) -> str | None:
        """Reason why a peer at the manager's address does not serve us; None if there is none, or all is well."""
        return self._version_trouble or self._dial.trouble

    def receive(self) -> list[FromManager]:
        """Return all messages that are there now. Never waits, and never raises because of a peer."""
        self._dial.advance()
        found = (self._decoded(frames, codec.decode_from_manager) for frames in self._frames())
        messages = [message for message in found if message is not None]
        if messages:
            self._version_trouble = ""
        return messages

    def _met_another_version(self, error: codec.BadFrameError) -> None:
        self._version_trouble = f"the manager at {self._manager} is a taskd of another version ({error})"

    def send(self, message: FromAgent) -> bool:
        """Send to the manager. Returns False without a connection, or if it does not read (send at the next change)."""
        frame = codec.encode(message)
        try:
            self._socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True


def _peer_host(frames: list[zmq.Frame]) -> str:
    try:
        return str(frames[0].get("Peer-Address"))
    except (IndexError, zmq.ZMQError):
        return "an unknown address"
