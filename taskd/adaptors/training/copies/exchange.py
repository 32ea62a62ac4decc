"""Transfer of copies to another node, over a separate connection to the rank that keeps them, not training's groups.

Rules:

1. Sending and receiving run at the same time, because all ranks send at once, in a ring (`ring.py`).
2. Both ends authenticate each other by keys derived from the job's secret, this world and their ranks
   (`runtime/links/peers.py`). A receiver checks rank and step of the received state. Without a secret there is no
   exchange.
3. Every wait checks whether it must end.
"""

import socket
import time
from collections.abc import Callable
from typing import Final

import msgspec
from torch._C._distributed_c10d import Store

from taskd.adaptors.training.copies.copy_file import CopyHead
from taskd.adaptors.training.copies.ring import CONNECT_S, Neighbours
from taskd.config.address import Address, parse_address
from taskd.errors import CopyError
from taskd.runtime.links.peers import FRAME_BYTES, Ends, PeerLink
from taskd.wire.kinds import JobRank

_HELLO: Final = b"taskd copies 2"
"""Greeting of both ends. Another number means another protocol."""
_LOOK_S: Final = 0.02
"""Interval at which a wait checks whether it must end, in seconds."""
_MOST_ADDRESS_CHARS: Final = 100


class Exchange:
    """One rank's connections to buddy and ward.

    Args:
        store: where the ranks of this world find one another.
        host: this rank's own address.
        world: name of this world, equal on all its ranks.
        rank: this rank.
        near: its neighbours.
        key: key of the job's ranks.
        stopped: returns whether to give up.
        asked: runs a query to the store and returns its result, however long the store takes.

    Raises:
        CopyError: a stop was requested, or a neighbour does not connect or sends something invalid.
        LinkError: the network failed.
    """

    def __init__(
        self,
        store: Store,
        host: str,
        world: str,
        rank: JobRank,
        near: Neighbours,
        key: str,
        stopped: Callable[[], bool],
        asked: Callable[[Callable[[], object]], object],
    ) -> None:
        assert near.buddy is not None
        assert near.ward is not None
        self._stopped, self._asked, self._near = stopped, asked, near
        self._link = PeerLink(key, Ends(world, rank, near.buddy, near.ward), host)
        try:
            self._connect(store, rank, near.buddy)
        except BaseException:
            self.close()
            raise

    def swap(
        self, step: int, head: CopyHead | None, outgoing: memoryview, room: Callable[[CopyHead], memoryview]
    ) -> CopyHead | None:
        """Send the buddy a copy (None: no copy this time) and receive the ward's into `room`; return its head."""
        to_send: list[bytes | memoryview] = [msgspec.msgpack.encode(head)]
        if head is not None:
            to_send += [outgoing[at : at + FRAME_BYTES] for at in range(0, len(outgoing), FRAME_BYTES)]
        to_send.reverse()
        theirs, into, known = None, memoryview(b""), False
        while to_send or into or not known:
            self._wait(reads=bool(into) or not known, writes=bool(to_send))
            while to_send and self._link.send(to_send[-1]):
                to_send.pop()
            while (into or not known) and (frame := self._link.receive()) is not None:
                if known:
                    into = _put(frame, into)
                else:
                    known, theirs = True, self._head(frame, step)
                    into = room(theirs) if theirs is not None else into
        return theirs

    def busy_s(self) -> float:
        """Return the processor time that the connections have taken so far, in seconds."""
        return self._link.busy_s()

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._link.close()

    def _head(self, frame: memoryview, step: int) -> CopyHead | None:
        """Decode the head of the ward's copy. Raises `CopyError` if it is not that rank's copy of this step."""
        try:
            head = msgspec.msgpack.decode(frame, type=CopyHead | None)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise CopyError(f"rank {self._near.ward} has sent no head of a copy: {error}") from error
        if head is not None and (head.of, head.step) != (self._near.ward, step):
            raise CopyError(
                f"rank {self._near.ward} has sent a copy of rank {head.of}'s state of step {head.step}, expected its "
                f"own of step {step}"
            )
        return head

    def _connect(self, store: Store, rank: JobRank, buddy: JobRank) -> None:
        """Connect to the buddy, and wait for the ward's connection."""
        end_s = time.monotonic() + CONNECT_S
        self._asked(lambda: store.set(f"address/{rank}", str(self._link.address)))
        key = f"address/{buddy}"
        while not self._asked(lambda: store.check([key])):
            self._pause(end_s, f"rank {buddy} has no address")
        self._link.connect(_address(self._asked(lambda: store.get(key)), buddy))
        self._asked(lambda: store.delete_key(key))
        said, heard = False, None
        while not said or heard is None:
            said = said or self._link.send(_HELLO)
            heard = self._link.receive() if heard is None else heard
            if not said or heard is None:
                why = f"rank {buddy} lets this one not in" if not said else f"rank {self._near.ward} has not connected"
                self._wait(reads=heard is None, writes=not said)
                self._look(end_s, why)
        if heard.tobytes() != _HELLO:
            raise CopyError(f"rank {self._near.ward} runs another version of taskd: install the same on every node")

    def _wait(self, *, reads: bool, writes: bool) -> None:
        self._link.wait(reads=reads, writes=writes, limit_s=_LOOK_S)
        if self._stopped():
            raise CopyError("told to stop")
        if self._link.trouble:
            raise CopyError(self._link.trouble)

    def _look(self, end_s: float, why: str) -> None:
        if self._stopped() or time.monotonic() > end_s:
            raise CopyError(why)

    def _pause(self, end_s: float, why: str) -> None:
        self._look(end_s, why)
        time.sleep(_LOOK_S)  # between two queries for another rank's entry


def _put(frame: memoryview, into: memoryview) -> memoryview:
    """Store one frame; return the memory that is still empty. Raises `CopyError` if the frame has another length."""
    expected = min(FRAME_BYTES, len(into))
    if len(frame) != expected:
        raise CopyError(f"a frame of a copy has {len(frame)} bytes, expected {expected}")
    into[:expected] = frame
    return into[expected:]


def own_host(store_host: str) -> str:
    """Return the address of this node as seen from the store's host. It may take as long as a resolver does."""
    with socket.socket(socket.AF_INET6 if ":" in store_host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((store_host, 9))
        return str(probe.getsockname()[0])


def _address(said: object, buddy: JobRank) -> Address:
    """Return the buddy's address from the store, where anybody may have written.

    A name is refused: ZeroMQ would resolve it on its own thread, and no connection could be closed meanwhile.
    """
    assert isinstance(said, bytes)
    found = parse_address(said.decode(errors="replace")) if len(said) <= _MOST_ADDRESS_CHARS else None
    if found is None or not found.is_numeric:
        raise CopyError(f"the store names no address of rank {buddy}")
    return found
