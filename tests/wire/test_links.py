"""Both ends of the link over real sockets: who gets in, who is refused, and that a good agent never notices."""

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from taskd.config.address import LOOPBACK, Address
from taskd.config.security import Security
from taskd.errors import LinkError, SecretError
from taskd.runtime.identity import Role, keys_from_secret
from taskd.runtime.links import STRANGER, AgentSocket, ManagerSocket
from taskd.wire import codec, messages

pytestmark = pytest.mark.timeout(60)

SECRET = Security(b"correct horse battery")
OTHER = Security(b"another secret entirely")
NONE = Security()
LIMIT_S = 15.0


def status(sequence: int = 0, agent_id: str = "a") -> messages.NodeStatus:
    return messages.NodeStatus(
        job_id="job",
        node_rank=0,
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
    """A manager's loop in a thread: answers every status with a directive of the same sequence number."""

    def __init__(self, listen: Address = Address(LOOPBACK, 0), security: Security = SECRET) -> None:  # noqa: B008
        self.socket = ManagerSocket(listen, security)
        self.address = self.socket.address
        self.served = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        while not self._stop.is_set():
            self.socket.poll(0.02)
            for peer, message in self.socket.receive():
                self.served += 1
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
    """One question and its answer; the seconds that it took."""
    until(link, lambda _: link.connected)
    began_s = time.monotonic()
    assert link.send(status(sequence))
    until(link, lambda got: any(isinstance(m, messages.Directive) and m.sequence == sequence for m in got))
    return time.monotonic() - began_s


@pytest.fixture
def manager() -> Iterator[ServingManager]:
    with ServingManager() as serving:
        yield serving


def refused(manager: ServingManager, kind: str, at_least: int = 1) -> None:
    """Wait until the manager has counted so many refusals of a kind."""
    deadline_s = time.monotonic() + LIMIT_S
    while manager.socket.refused[kind] < at_least:
        assert time.monotonic() < deadline_s, manager.socket.refused
        time.sleep(0.005)  # the count is written by the manager's thread; nothing else tells of it


def raw_dealer(address: Address, context: zmq.Context, secret: bytes | None = SECRET.secret) -> zmq.Socket:
    """A peer that holds the secret and may send anything."""
    dealer = context.socket(zmq.DEALER)
    dealer.linger = 0
    if secret is not None:
        own = keys_from_secret(secret, Role.AGENT)
        dealer.curve_publickey, dealer.curve_secretkey = own
        dealer.curve_serverkey = keys_from_secret(secret, Role.MANAGER).public
    dealer.connect(address.endpoint)
    return dealer


@pytest.mark.parametrize("security", [SECRET, NONE], ids=["secret", "no secret"])
def test_a_message_goes_there_and_back(security):
    with ServingManager(security=security) as manager, AgentSocket(manager.address, security) as agent:
        assert ask(agent, 7) < 1.0
        assert agent.trouble is None
        assert not manager.socket.refused


def test_ipv6(manager):
    with ServingManager(Address("::1", 0)) as six, AgentSocket(six.address, SECRET) as agent:
        ask(agent, 1)


def test_all_interfaces_serve_both_families():
    with ServingManager(Address("*", 0)) as manager:
        for host in ("127.0.0.1", "::1", "localhost"):
            with AgentSocket(Address(host, manager.address.port), SECRET) as agent:
                ask(agent, 1)


def test_keys_differ_by_role_and_secret_and_are_stable():
    secret = SECRET.secret
    pairs = {keys_from_secret(s, role) for s in (secret, OTHER.secret) for role in Role}
    assert len(pairs) == 4
    # a change of the derivation locks agents of this version out of managers of the last one: raise WIRE_VERSION
    assert keys_from_secret(secret, Role.MANAGER).public == b"3o@fV0D)ZuZ})IXOK%kpUCrf1G%G=$30/ndEOX5>"


@pytest.mark.parametrize(
    ("manager_side", "agent_side", "words"),
    [
        (SECRET, OTHER, "refused our secret"),
        (SECRET, NONE, "because we have no secret"),
        (NONE, SECRET, "refused our secret, or has none"),
    ],
    ids=["wrong", "missing", "superfluous"],
)
def test_a_wrong_secret_is_told_from_no_manager(manager_side, agent_side, words, caplog):
    with ServingManager(security=manager_side) as manager, AgentSocket(manager.address, agent_side) as agent:
        until(agent, lambda _: agent.trouble is not None)
        assert words in agent.trouble
        assert str(manager.address) in agent.trouble
        assert not agent.connected
        assert not agent.send(status())
        until(agent, lambda _: manager.socket.refused[STRANGER] >= 4)  # it keeps trying
        assert manager.served == 0
    told = [r.name for r in caplog.records if r.levelno == logging.WARNING]
    assert sorted(told) == ["taskd.runtime.links", "taskd.runtime.monitor"]  # each side once


def test_no_manager_is_no_trouble_and_a_late_one_is_found():
    with socket.create_server((LOOPBACK, 0)) as held:
        port = held.getsockname()[1]
    with AgentSocket(Address(LOOPBACK, port), SECRET) as agent:
        agent.poll(0.5)
        agent.receive()
        assert (agent.connected, agent.trouble, agent.send(status())) == (False, None, False)
        with ServingManager(Address(LOOPBACK, port)):
            ask(agent, 1)


def test_a_host_given_by_name_is_tried_by_both_families_and_found():
    with socket.create_server((LOOPBACK, 0)) as held:
        port = held.getsockname()[1]
    name = "localhost.localdomain." if _resolves("localhost.localdomain.") else socket.gethostname()
    if not _resolves(name):
        pytest.skip(f"{name} does not resolve to {LOOPBACK} on this machine")
    with AgentSocket(Address(name, port), SECRET) as agent:
        deadline_s = time.monotonic() + 3.5  # the fifth try, after 2.5 s, changes the family
        while time.monotonic() < deadline_s:
            agent.poll(0.2)
            assert agent.receive() == []
        with ServingManager(Address(LOOPBACK, port)):
            ask(agent, 1)


def _resolves(name: str) -> bool:
    try:
        return socket.gethostbyname(name) == LOOPBACK
    except OSError:
        return False


def test_a_manager_that_comes_back_is_found_within_two_seconds():
    with ServingManager() as first:
        address = first.address
        agent = AgentSocket(address, SECRET)
        ask(agent, 1)
    with agent:
        until(agent, lambda _: not agent.connected)
        with ServingManager(address):
            began_s = time.monotonic()
            ask(agent, 2)
            assert time.monotonic() - began_s < 2.0


def test_trouble_ends_when_the_right_manager_takes_the_port():
    with ServingManager(security=OTHER) as wrong:
        address = wrong.address
        agent = AgentSocket(address, SECRET)
        until(agent, lambda _: agent.trouble is not None)
    with agent, ServingManager(address):
        ask(agent, 1)
        assert agent.trouble is None


@contextlib.contextmanager
def web_server() -> Iterator[Address]:
    """A program that is no manager: it answers every connection with a line of HTTP, and hangs up."""

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


def test_a_program_that_is_no_manager_is_named_and_survived():
    with contextlib.ExitStack() as stack:
        with web_server() as address:
            agent = stack.enter_context(AgentSocket(address, SECRET))
            until(agent, lambda _: agent.trouble is not None)
            assert "no manager of taskd" in agent.trouble
        stack.enter_context(ServingManager(address))
        ask(agent, 1)


def test_a_peer_with_the_secret_cannot_harm_with_garbage(manager, caplog):
    newer = codec.MAGIC + b"\x09" + codec.encode(status())[3:]
    bad = {
        codec.Fault.MAGIC: [b"", b"hello", os.urandom(1000)],
        codec.Fault.VERSION: [newer],
        codec.Fault.CONTENT: [b"TD\x01\xc1", codec.encode(directive(1)), codec.encode(status())[:-1]],
        codec.Fault.SIZE: [b"x" * (codec.MAX_FRAME_BYTES + 1)],
    }
    context = zmq.Context()
    dealer = raw_dealer(manager.address, context)
    with AgentSocket(manager.address, SECRET) as agent:
        ask(agent, 1)
        for frames in bad.values():
            for frame in frames * 3:
                dealer.send(frame)
        dealer.send_multipart([codec.encode(status())] * 3)
        for fault, frames in bad.items():
            refused(manager, fault.value, 3 * len(frames))
        ask(agent, 2)
    dealer.close(0)
    context.term()
    assert manager.served == 2
    logged = [record.getMessage() for record in caplog.records if record.name == "taskd.runtime.links"]
    assert len(logged) == len(bad), logged  # once per kind and peer
    assert all(LOOPBACK in line for line in logged)


def test_knowing_the_managers_key_is_not_enough(manager):
    """The handshake needs the manager's public key, the gate the agents' own: a leaked public key opens nothing."""
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.curve_publickey, dealer.curve_secretkey = zmq.curve_keypair()
    dealer.curve_serverkey = keys_from_secret(SECRET.secret, Role.MANAGER).public
    watched = dealer.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH)
    dealer.connect(manager.address.endpoint)
    assert watched.poll(LIMIT_S * 1000)
    assert recv_monitor_message(watched)["event"] == zmq.EVENT_HANDSHAKE_FAILED_AUTH
    dealer.disable_monitor()
    watched.close(0)
    dealer.close(0)
    context.term()
    refused(manager, STRANGER)


def test_a_manager_that_sends_too_much_is_cut_off_and_dialled_again():
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.linger = 0
    port = router.bind_to_random_port(f"tcp://{LOOPBACK}")
    with AgentSocket(Address(LOOPBACK, port), NONE) as agent:
        for sequence in range(3):
            until(agent, lambda _: agent.connected)
            assert agent.send(status(sequence))
            peer, _ = router.recv_multipart()
            router.send_multipart([peer, codec.encode(directive(sequence))])
            assert until(agent, bool) == [directive(sequence)]
            router.send_multipart([peer, b"x" * (4 * codec.MAX_FRAME_BYTES)])
            until(agent, lambda _: not agent.connected)
    router.close(0)
    context.term()


def test_a_frame_beyond_all_bounds_is_cut_off(manager):
    context = zmq.Context()
    dealer = raw_dealer(manager.address, context)
    watched = dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    dealer.send(b"x" * (4 * codec.MAX_FRAME_BYTES))
    assert watched.poll(LIMIT_S * 1000), "the connection stands"
    dealer.disable_monitor()
    watched.close(0)
    dealer.close(0)
    context.term()
    with AgentSocket(manager.address, SECRET) as agent:
        ask(agent, 1)


def test_an_agent_refuses_what_is_no_managers_message():
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.linger = 0
    port = router.bind_to_random_port(f"tcp://{LOOPBACK}")
    with AgentSocket(Address(LOOPBACK, port), NONE) as agent:
        until(agent, lambda _: agent.connected)
        agent.send(status())
        peer, _ = router.recv_multipart()
        for frame in (b"noise", codec.encode(status()), codec.encode(directive(5))):
            router.send_multipart([peer, frame])
        assert until(agent, bool) == [directive(5)]
        assert agent.refused == {"magic": 1, "content": 1}
    router.close(0)
    context.term()


def test_noise_and_200_connections_do_not_stop_a_good_agent(manager):
    noises = [b"", b"GET / HTTP/1.1\r\n\r\n", os.urandom(400), b"\xff" + bytes(8) + b"\x7f" + os.urandom(90)]
    with AgentSocket(manager.address, SECRET) as agent, contextlib.ExitStack() as open_sockets:
        ask(agent, 0)
        slowest_s = 0.0
        for number in range(200):
            noise = open_sockets.enter_context(socket.create_connection((LOOPBACK, manager.address.port)))
            with contextlib.suppress(ConnectionError):
                noise.sendall(noises[number % len(noises)])
            if number % 20 == 0:
                slowest_s = max(slowest_s, ask(agent, number + 1))
        refused(manager, STRANGER, 100)  # the silent ones stay until the handshake's time is over
        assert slowest_s < 1.0
        ask(agent, 1000)
        assert agent.connected


def test_100_agents_are_served(manager):
    agents = [AgentSocket(manager.address, SECRET) for _ in range(100)]
    try:
        for number, agent in enumerate(agents):
            ask(agent, number)
        assert manager.served == 100
    finally:
        for agent in agents:
            agent.close()


def test_sending_to_a_peer_that_left_is_false_and_nothing_more():
    with ManagerSocket(Address(LOOPBACK, 0), NONE) as manager:
        with AgentSocket(manager.address, NONE) as agent:
            until(agent, lambda _: agent.connected)
            assert agent.send(status())
            assert manager.poll(LIMIT_S)
            received = []
            while not received:
                manager.poll(LIMIT_S)
                received = manager.receive()
            peer, _ = received[0]
            assert manager.send(peer, directive(1))
        deadline_s = time.monotonic() + LIMIT_S
        while manager.send(peer, directive(2)):
            assert time.monotonic() < deadline_s
            manager.poll(0.05)
            manager.receive()


def test_what_was_sent_last_arrives_when_the_close_may_take_its_time(manager):
    agent = AgentSocket(manager.address, SECRET)
    until(agent, lambda _: agent.connected)
    sent = sum(
        agent.send(status(number, agent_id="a" * 1_000_000)) for number in range(12)
    )  # too much to leave at once
    agent.close(flush_s=10.0)
    deadline_s = time.monotonic() + LIMIT_S
    while manager.served < sent:
        assert time.monotonic() < deadline_s, f"{manager.served} of {sent} arrived"
        time.sleep(0.005)  # the count is written by the manager's thread; nothing else tells of it


def test_a_port_in_use_names_the_process():
    words = rf"in use by process {os.getpid()} .*TASKD_MANAGER_PORT"
    with ManagerSocket(Address(LOOPBACK, 0), NONE) as first, pytest.raises(LinkError, match=words):
        ManagerSocket(Address(LOOPBACK, first.address.port), NONE)


@pytest.mark.parametrize(
    ("host", "words"), [("192.0.2.1", "no such address"), ("no-such-host.invalid", "does not resolve")]
)
def test_an_address_that_cannot_be_bound_has_its_remedy(host, words):
    with pytest.raises(LinkError, match=words):
        ManagerSocket(Address(host, 0), SECRET)


@pytest.mark.parametrize("host", ["*", "0.0.0.0", "::", "10.0.0.1"])
def test_beyond_loopback_nothing_goes_without_a_secret(host):
    with pytest.raises(SecretError, match="TASKD_SECRET"):
        ManagerSocket(Address(host, 0), NONE)
    with pytest.raises(SecretError, match="TASKD_INSECURE=on"):
        AgentSocket(Address(host, 9601), NONE)


def test_insecure_must_be_said():
    with (
        ServingManager(Address("*", 0), Security(None, insecure=True)) as manager,
        AgentSocket(Address(LOOPBACK, manager.address.port), NONE) as agent,
    ):
        ask(agent, 1)
