"""The place where a process finds its rank's agent on this machine: a name in the kernel, gone with the agent.

Rules:

1. A name is an abstract one: no file is left behind, whatever dies. Without the ticket nobody can guess it. But each
   user of the machine can read it once it is in use, and take it when the agent has died. So a name proves nothing.
2. Both ends query the kernel for the other's user (SO_PEERCRED), and send nothing to another user.
3. Both ends then prove that they hold the job's key for this rank, each for a number that the other has drawn. Neither
   end uses the other's data before that.
4. A rank has `DOORS` names, which do not follow from one another. If strangers hold the first ones, the agent is at the
   next free one. A process tries all of them at once, so many silent strangers cost no more than one.
5. An answer is JSON. The first process of a rank of a job that forms gets its variables, any other an empty answer. The
   connection then is the process's link to the agent.
"""

import errno
import hmac
import json
import logging
import os
import secrets
import select
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from taskd.errors import LinkError
from taskd.runtime.system.own_sockets import peer_of, refuse_strangers

logger = logging.getLogger(__name__)
DOORS: Final = 8
_MOST_BYTES: Final = 200 << 10
_PATIENCE_S: Final = 30.0
"""Time limit for the answer of an agent that has proved itself, in seconds."""
_PROOF_S: Final = 10.0
"""Time limit for an agent's proof, in seconds: one that has just started to listen waits for the manager first."""
_QUEUE_S: Final = 1.0
_LOOK_S: Final = 0.005
_NONCE_BYTES: Final = 32
_PROOF_BYTES: Final = 32
_MOST_WAITING: Final = 64
_OF_AGENT: Final = b"taskd: the agent of a rank"
_OF_PROCESS: Final = b"taskd: a process of a rank"


@dataclass(frozen=True)
class Entrance:
    """Names and key of one rank, as its ticket has them."""

    names: tuple[str, ...]
    key: bytes


@dataclass(frozen=True)
class Visitor:
    """A process that requests the rank. The owner of this object closes `link` or hands it on."""

    pid: int
    link: socket.socket

    def tell(self, env: Mapping[str, str]) -> bool:
        """Send the answer; return whether the process is still there."""
        try:
            self.link.sendall(json.dumps(dict(env)).encode())
        except OSError:
            self.link.close()
            return False
        return True


class Door:
    """The agent's side."""

    def __init__(self, entrance: Entrance) -> None:
        """Listen at the first free name. Raise `LinkError` if another agent of the rank is there, or none is free."""
        self._key = entrance.key
        self._listener = _listen(entrance.names)
        self._poll = select.epoll()
        self._poll.register(self._listener, select.EPOLLIN)
        self._waiting: dict[int, tuple[socket.socket, bytes]] = {}
        """Connections without a proof so far, with the proof expected of each; b"" before its first message."""
        self._told = False

    def fileno(self) -> int:
        """Return a descriptor that is readable when a process has come, or has sent something."""
        return self._poll.fileno()

    def let_in(self) -> list[Visitor]:
        """Return the processes that have proved themselves by now. Never waits."""
        ready, listener = [descriptor for descriptor, _ in self._poll.poll(0)], self._listener.fileno()
        heard = [self._hear(descriptor) for descriptor in ready if descriptor != listener]
        if listener in ready:  # last: to let one in, another may be sent away
            self._accept()
        return [visitor for visitor in heard if visitor is not None]

    def close(self) -> None:
        """Stop listening: nobody can find this agent any more."""
        for descriptor in list(self._waiting):
            self._send_away(descriptor)
        self._poll.close()
        self._listener.close()

    def _accept(self) -> None:
        try:
            link, _ = self._listener.accept()
        except OSError as error:
            logger.debug("a process that asks for a rank cannot be let in: %s", error)
            return
        try:
            refuse_strangers(link, "the agent of a rank")
        except PermissionError as error:
            link.close()
            self._tell(f"a process asks for a rank: {error.strerror}")
            return
        if len(self._waiting) >= _MOST_WAITING:
            self._send_away(next(iter(self._waiting)))
        link.setblocking(False)
        self._waiting[link.fileno()] = (link, b"")
        self._poll.register(link, select.EPOLLIN)

    def _hear(self, descriptor: int) -> Visitor | None:
        link, expected = self._waiting[descriptor]
        try:
            said = link.recv(_PROOF_BYTES + 1)
            if not expected and len(said) == _NONCE_BYTES:
                both = said + secrets.token_bytes(_NONCE_BYTES)
                self._waiting[descriptor] = (link, _proof(self._key, _OF_PROCESS, both))
                link.sendall(both[_NONCE_BYTES:] + _proof(self._key, _OF_AGENT, both))
                return None
        except OSError:
            said = b""
        self._poll.unregister(link)
        del self._waiting[descriptor]
        pid, _ = peer_of(link)
        if expected and hmac.compare_digest(said, expected):
            link.setblocking(True)
            return Visitor(pid, link)
        link.close()
        if said:
            self._tell(f"process {pid} asks for a rank, and does not hold its job's key; refused")
        return None

    def _tell(self, what: str) -> None:
        """Log the first stranger only: a refused process may come again and again."""
        if not self._told:
            self._told = True
            logger.error("%s; further ones are not logged", what)

    def _send_away(self, descriptor: int) -> None:
        link, _ = self._waiting.pop(descriptor)
        self._poll.unregister(link)
        link.close()


def knock(entrance: Entrance, until_s: float = inf) -> tuple[socket.socket, dict[str, str]] | None:
    """Connect to the rank's agent; return the link and its answer, None if it is not on this machine or has just gone.

    Returns at `until_s` of the monotonic clock at the latest.
    """
    asked = _ask(entrance.names, until_s)
    try:
        for link in _proven(asked, entrance.key, min(until_s, time.monotonic() + _PROOF_S)):
            try:
                env = answer(link, until_s)
            except OSError as error:
                logger.debug("the agent of this rank says nothing more: %s", error)
                continue
            if env is not None:
                del asked[link.fileno()]
                return link, env
    finally:
        for link, _ in asked.values():
            link.close()
    return None


def answer(link: socket.socket, until_s: float = inf) -> dict[str, str] | None:
    """Receive the agent's answer at a proven link; None if the agent has gone. Raise `OSError` if it is too late."""
    link.settimeout(max(0.0, min(_PATIENCE_S, until_s - time.monotonic())))
    frame = link.recv(_MOST_BYTES)
    link.settimeout(None)
    return {str(name): str(value) for name, value in json.loads(frame).items()} if frame else None


def _ask(names: Sequence[str], until_s: float) -> dict[int, tuple[socket.socket, bytes]]:
    """Connect to the listeners at these names; return by descriptor each connection and the number sent along it."""
    asked: dict[int, tuple[socket.socket, bytes]] = {}
    for name in names:
        link = _connect(name, until_s=until_s)
        if link is None:
            continue
        own = secrets.token_bytes(_NONCE_BYTES)
        try:
            link.sendall(own)
        except OSError as error:
            logger.debug("who listens at a name of this rank has just gone: %s", error)
            link.close()
        else:
            asked[link.fileno()] = link, own
    return asked


def _proven(asked: Mapping[int, tuple[socket.socket, bytes]], key: bytes, until_s: float) -> Iterator[socket.socket]:
    """Yield each connection whose other end has proved that it holds the key, as soon as it has."""
    poller, silent = select.poll(), set(asked)
    for descriptor in asked:
        poller.register(descriptor, select.POLLIN)
    while silent and (left_s := until_s - time.monotonic()) > 0:
        for descriptor, _ in poller.poll(left_s * 1000):
            poller.unregister(descriptor)
            silent.discard(descriptor)
            if _proves_itself(*asked[descriptor], key):
                yield asked[descriptor][0]
    for descriptor in silent:
        logger.warning(
            "process %d listens at a name of this rank's agent, and is silent; passed over",
            peer_of(asked[descriptor][0])[0],
        )


def _proves_itself(link: socket.socket, own: bytes, key: bytes) -> bool:
    """Return whether the other end holds the key; if it does, this end's proof has been sent to it."""
    try:
        said = link.recv(_NONCE_BYTES + _PROOF_BYTES + 1)
        both = own + said[:_NONCE_BYTES]
        if hmac.compare_digest(said[_NONCE_BYTES:], _proof(key, _OF_AGENT, both)):
            link.sendall(_proof(key, _OF_PROCESS, both))
            return True
    except OSError as error:
        logger.debug("who listens at a name of this rank says nothing more: %s", error)
        return False
    if said:
        logger.error("process %d listens in place of this rank's agent, without its key; passed over", peer_of(link)[0])
    return False


def _proof(key: bytes, of: bytes, numbers: bytes) -> bytes:
    return hmac.digest(key, of + numbers, "sha256")


def _connect(name: str, level: int = logging.WARNING, until_s: float = inf) -> socket.socket | None:
    """Return the connection to the listener at a name; None if there is none.

    None also if it is another user's, whom a log line of this level names.
    """
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        _enter_queue(link, name, until_s)
        refuse_strangers(link, "a name of this rank's agent")
    except PermissionError as error:
        logger.log(level, "a name of this rank's agent is taken: %s; another name is used", error.strerror)
    except OSError:
        pass
    else:
        return link
    link.close()
    return None


def _enter_queue(link: socket.socket, name: str, until_s: float) -> None:
    """Connect, at once or while an agent empties a full queue. A stranger may keep its own queue full for ever."""
    link.settimeout(0)
    until_s = min(until_s, time.monotonic() + _QUEUE_S)
    while (error := link.connect_ex(_address(name))) == errno.EAGAIN and time.monotonic() < until_s:
        time.sleep(_LOOK_S)  # nothing signals that there is room again
    if error:
        raise OSError(error, os.strerror(error))


def _listen(names: Sequence[str]) -> socket.socket:
    for name in names:
        _refuse_another(name)
    for name in names:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            listener.bind(_address(name))
            listener.listen(_MOST_WAITING)
        except OSError:
            listener.close()
            _refuse_another(name)  # it may have come just now
            continue
        return listener
    raise LinkError(
        f"all {len(names)} names of this rank's agent on this machine are taken, expected a free one; see which "
        "processes hold them (ss -xlp), end those, and start the rank again"
    )


def _refuse_another(name: str) -> None:
    link = _connect(name, logging.INFO)  # the rank's process warns
    if link is not None:
        pid, _ = peer_of(link)
        link.close()
        raise LinkError(
            f"the agent of this rank runs on this machine already (process {pid}), expected none; ask that one"
        )


def _address(name: str) -> str:
    return f"\0taskd/{os.geteuid()}/{name}"
