"""Peers of a manager that say what they should not: with the job's secret, with another, with none."""

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
    """A peer that knows the secret, and sends whatever it likes."""

    def __init__(self, address: Address, secret: str | None = SECRET) -> None:
        self._context = zmq.Context()
        self._dealer = raw_dealer(address, self._context, secret.encode() if secret else None)

    def send(self, value: Any) -> None:
        """A message by its fields."""
        self.send_frame(codec.MAGIC + bytes([codec.WIRE_VERSION]) + msgspec.msgpack.encode(value))

    def send_frame(self, frame: bytes) -> None:
        """Any bytes."""
        self._dealer.send(frame)

    def frame(self) -> bytes:
        """The next frame that the manager sends."""
        assert self._dealer.poll(int(1000 * _LIMIT_S)), "the manager says nothing"
        return self._dealer.recv()

    def heard(self, seconds: float) -> list[object]:
        """All that the manager has said, until it says nothing for so long."""
        found: list[object] = []
        while self._dealer.poll(int(1000 * seconds)):
            found.append(codec.decode_from_manager(self._dealer.recv()))
        return found

    def settle(self) -> None:
        """Wait until the manager has taken all that was sent before: it answers a question that comes after it.

        The question is asked again while its answers to all that have filled the queue.
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
        """Hang up."""
        self._context.destroy(linger=0)


@contextmanager
def insider(job: AttackedJob, secret: str | None = SECRET) -> Iterator[Insider]:
    """Somebody on a node of the job."""
    peer = Insider(job.address, secret)
    try:
        yield peer
    finally:
        peer.close()


def says(job: AttackedJob, values: Iterable[Any]) -> None:
    """A peer with the secret sends these messages, and the manager takes them."""
    with insider(job) as peer:
        for value in values:
            peer.send(value)
        peer.settle()
