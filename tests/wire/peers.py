"""Peers for the tests of the link: a manager's loop, an agent's requests, and strangers."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import zmq

from taskd.config.address import LOOPBACK, Address
from taskd.config.security import Security
from taskd.runtime.links.identity import Role, keys_from_secret
from taskd.runtime.links.links import AgentSocket, ManagerSocket
from taskd.wire import messages
from taskd.wire.kinds import NodeRank

SECRET = Security(b"correct horse battery")
OTHER = Security(b"another secret entirely")
NONE = Security()
ANOTHER_JOB = Security(SECRET.secret, job_id="another")
LIMIT_S = 15.0


def status(sequence: int = 0, agent_id: str = "a") -> messages.NodeStatus:
    return messages.NodeStatus(
        job_id="job",
        node_rank=NodeRank(0),
        agent_id=agent_id,
        sequence=sequence,
        node_count=1,
        ranks=(),
        store_host="127.0.0.1",
        store_port=1,
        standbys=0,
        max_restarts=0,
        generation=0,
    )


def directive(sequence: int) -> messages.Directive:
    return messages.Directive(job_id="job", sequence=sequence, generation=0, order=messages.Order.RUN)


class ServingManager:
    """A manager's loop in a thread. Unless silent, it answers every status with a directive of its sequence number."""

    def __init__(
        self,
        listen: Address = Address(LOOPBACK, 0),  # noqa: B008
        security: Security = SECRET,
        *,
        silent: bool = False,
    ) -> None:
        self.socket = ManagerSocket(listen, security)
        self.address = self.socket.address
        self.served = 0
        self._silent = silent
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        while not self._stop.is_set():
            self.socket.poll(0.02)
            for peer, message in self.socket.receive():
                assert isinstance(message, messages.NodeStatus)
                self.served += 1
                if not self._silent:
                    self.socket.send(peer, directive(message.sequence))

    def __enter__(self) -> "ServingManager":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.socket.close()


def until(link: AgentSocket, done: Callable[[list[messages.FromManager]], bool]) -> list[messages.FromManager]:
    """Run an agent's receiving until `done`, or fail after `LIMIT_S`."""
    deadline_s = time.monotonic() + LIMIT_S
    got: list[messages.FromManager] = []
    while not done(got):
        assert time.monotonic() < deadline_s, f"got {got}, connected {link.connected}, trouble {link.trouble}"
        link.poll(0.05)
        got += link.receive()
    return got


def ask(link: AgentSocket, sequence: int) -> float:
    """Send one request and wait for its answer. Return the seconds that it took."""
    until(link, lambda _: link.connected)
    began_s = time.monotonic()
    assert link.send(status(sequence))
    until(link, lambda got: any(isinstance(m, messages.Directive) and m.sequence == sequence for m in got))
    return time.monotonic() - began_s


def refused(manager: ServingManager, kind: str, at_least: int = 1) -> None:
    """Wait until the manager has counted so many refusals of a kind."""
    deadline_s = time.monotonic() + LIMIT_S
    while manager.socket.refused[kind] < at_least:
        assert time.monotonic() < deadline_s, manager.socket.refused
        time.sleep(0.005)  # the manager's thread writes the count, without an event


def raw_dealer(
    address: Address, context: zmq.Context, secret: bytes | None = SECRET.secret, job_id: str = SECRET.job_id
) -> zmq.Socket:
    """Return a peer that holds the secret and may send anything."""
    dealer = context.socket(zmq.DEALER)
    dealer.linger = 0
    if secret is not None:
        own = keys_from_secret(secret, Role.AGENT, job_id)
        dealer.curve_publickey, dealer.curve_secretkey = own
        dealer.curve_serverkey = keys_from_secret(secret, Role.MANAGER, job_id).public
    dealer.connect(address.endpoint)
    return dealer


@contextlib.contextmanager
def web_server() -> Iterator[Address]:
    """Yield the address of a server that is no manager: it answers connections with a line of HTTP and closes them."""

    def refuse() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = server.accept()
                with client:
                    client.recv(10)
                    client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server((LOOPBACK, 0)) as server:
        thread = threading.Thread(target=refuse)
        thread.start()
        try:
            yield Address(LOOPBACK, server.getsockname()[1])
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
