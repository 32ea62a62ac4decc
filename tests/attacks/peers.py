"""Peers of a manager that send forbidden messages: with the job's secret, with another one, or with none."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import zmq

from taskd.config.address import Address
from taskd.runtime.links.identity import agent_of
from taskd.wire import codec
from taskd.wire.kinds import NodeRank
from taskd.wire.messages import Answer, Drain, NodeStatus
from tests.attacks.job import SECRET, AttackedJob
from tests.wire.peers import raw_dealer

PROOF = "a stranger's proof"
STATUS: dict[str, Any] = msgspec.to_builtins(
    NodeStatus(
        job_id="default", node_rank=NodeRank(-1), agent_id=agent_of(PROOF), proof=PROOF, sequence=1, node_count=1,
        ranks=(), store_host="127.0.0.1", store_port=1, standbys=0, max_restarts=0, generation=0,
    )
)  # fmt: skip
_LIMIT_S = 20.0
_AGAIN_MS = 500


class Insider:
    """A peer that knows the secret, and sends anything."""

    def __init__(self, address: Address, secret: str | None = SECRET) -> None:
        self._context = zmq.Context()
        self._dealer = raw_dealer(address, self._context, secret.encode() if secret else None)

    def send(self, value: Any) -> None:
        """Send a message by its fields."""
        self.send_frame(codec.MAGIC + bytes([codec.WIRE_VERSION]) + msgspec.msgpack.encode(value))

    def send_frame(self, frame: bytes) -> None:
        """Send any bytes."""
        self._dealer.send(frame)

    def frame(self) -> bytes:
        """Return the next frame that the manager sends."""
        assert self._dealer.poll(int(1000 * _LIMIT_S)), "the manager says nothing"
        return self._dealer.recv()

    def heard(self, seconds: float) -> list[object]:
        """Return all messages of the manager, until it sends nothing for `seconds`."""
        found: list[object] = []
        while self._dealer.poll(int(1000 * seconds)):
            found.append(codec.decode_from_manager(self._dealer.recv()))
        return found

    def settle(self) -> None:
        """Wait until the manager has processed all earlier messages: it answers a later request.

        The request is repeated while the answers to the earlier messages fill the queue.
        """
        end_s = time.monotonic() + _LIMIT_S
        while time.monotonic() < end_s:
            self._dealer.send(codec.encode(Drain(job_id="another", node="1")))
            while self._dealer.poll(_AGAIN_MS):
                frame = self._dealer.recv()
                if frame == codec.HEADER:
                    continue  # to a frame of another version
                answer = codec.decode_from_manager(frame)
                if isinstance(answer, Answer) and "found job 'another'" in answer.text:
                    return
        raise AssertionError("the manager does not answer any more")

    def close(self) -> None:
        """Close the connection."""
        self._context.destroy(linger=0)


@contextmanager
def insider(job: AttackedJob, secret: str | None = SECRET) -> Iterator[Insider]:
    """Yield a peer on a node of the job."""
    peer = Insider(job.address, secret)
    try:
        yield peer
    finally:
        peer.close()


def says(job: AttackedJob, values: Iterable[Any]) -> None:
    """Send these messages from a peer with the secret, and wait until the manager has processed them."""
    with insider(job) as peer:
        for value in values:
            peer.send(value)
        peer.settle()
