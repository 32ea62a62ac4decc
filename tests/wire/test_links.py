"""Both ends of the link over real sockets: messages go there and back, and connections come back."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import zmq

from taskd.config.address import LOOPBACK, Address
from taskd.errors import LinkError
from taskd.runtime.links.identity import Role, keys_from_secret
from taskd.runtime.links.links import AgentSocket, ManagerSocket
from taskd.wire import codec
from tests.wire.peers import (
    LIMIT_S,
    NONE,
    OTHER,
    SECRET,
    ServingManager,
    ask,
    directive,
    raw_dealer,
    status,
    until,
    web_server,
)


@pytest.mark.parametrize("security", [SECRET, NONE], ids=["secret", "no secret"])
def test_a_message_goes_there_and_back(security):
    with ServingManager(security=security) as manager, AgentSocket(manager.address, security) as agent:
        assert ask(agent, 7) < 1.0
        assert agent.trouble is None
        assert not manager.socket.refused


@pytest.mark.parametrize("security", [SECRET, NONE], ids=["secret", "no secret"])
def test_within_a_process_no_connection_is_made(security):
    with ServingManager(security=security) as manager:
        with AgentSocket(manager.address, security, context=manager.socket.context) as agent:
            assert ask(agent, 7) < 1.0
            assert agent.connected
            assert not connections_to(manager.address.port)
        with AgentSocket(manager.address, security) as other:
            ask(other, 8)
            assert connections_to(manager.address.port)


def connections_to(port: int) -> list[str]:
    """Return lines of this machine's established TCP connections with that port."""
    lines = Path("/proc/net/tcp").read_text().splitlines()
    return [line for line in lines if f":{port:04X} " in line and line.split()[3] == "01"]


def test_ipv6(manager):
    with ServingManager(Address("::1", 0)) as six, AgentSocket(six.address, SECRET) as agent:
        ask(agent, 1)


def test_all_interfaces_serve_both_families():
    with ServingManager(Address("*", 0)) as manager:
        for host in ("127.0.0.1", "::1", "localhost"):
            with AgentSocket(Address(host, manager.address.port), SECRET) as agent:
                ask(agent, 1)


def test_keys_differ_by_role_secret_and_job_and_are_stable():
    secret = SECRET.secret
    pairs = {keys_from_secret(s, role, job) for s in (secret, OTHER.secret) for role in Role for job in ("job", "Job")}
    assert len(pairs) == 8
    # a change of the derivation locks agents of this version out of managers of the last one: raise WIRE_VERSION
    assert keys_from_secret(secret, Role.MANAGER, "job").public == b"m[j#ann?j.>&D#HKe(?>w>ll>349+4ItO0ESvLwv"


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


def test_a_program_that_is_no_manager_is_named_and_survived():
    with contextlib.ExitStack() as stack:
        with web_server() as address:
            agent = stack.enter_context(AgentSocket(address, SECRET))
            until(agent, lambda _: agent.trouble is not None)
            assert "no manager of taskd" in agent.trouble
        stack.enter_context(ServingManager(address))
        ask(agent, 1)


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


def test_what_was_sent_last_arrives_when_the_close_may_take_its_time():
    """This holds if nothing comes back meanwhile: the kernel resets a connection that is closed with unread data."""
    with ServingManager(silent=True) as manager:
        agent = AgentSocket(manager.address, SECRET)
        until(agent, lambda _: agent.connected)
        sent = sum(agent.send(status(number, agent_id="a" * 1_000_000)) for number in range(12))
        agent.close(flush_s=10.0)  # it is too much to send at once
        deadline_s = time.monotonic() + LIMIT_S
        while manager.served < sent:
            assert time.monotonic() < deadline_s, f"{manager.served} of {sent} arrived"
            time.sleep(0.005)  # the manager's thread writes the count, without an event


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


def test_whoever_hangs_up_with_messages_unread_does_not_end_a_busy_manager():
    """libzmq aborts when it sends a heartbeat of its own to such a peer."""
    command = [sys.executable, "-m", "tests.wire.busy_manager"]
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as manager:
        address = Address(LOOPBACK, int(manager.stdout.readline()))
        with zmq.Context() as context:
            dealer = raw_dealer(address, context)
            dealer.send(codec.encode(status(agent_id="first")))
            assert manager.stdout.readline() == "busy\n"
            for _ in range(100):  # more than its queue holds
                dealer.send(codec.encode(status(agent_id="first")))
            dealer.close(round(LIMIT_S * 1000))
        with pytest.raises(subprocess.TimeoutExpired):
            manager.wait(5)  # longer than two heartbeats
        manager.stdin.write("\n")
        manager.stdin.flush()
        with AgentSocket(address, SECRET) as agent:
            until(agent, lambda _: agent.connected)
            assert agent.send(status(agent_id="second"))
            until(agent, bool)
        manager.stdin.close()
        assert manager.wait(LIMIT_S) == 0
