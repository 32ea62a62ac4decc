"""Connections that never send anything: whatever their number, the manager serves its agents, and reports them once."""

import contextlib
import logging
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from taskd.config.address import LOOPBACK, Address
from taskd.runtime.links import halfopen, links
from taskd.runtime.links.halfopen import FLOOD, WINDOW_S, Flood, HalfOpen
from taskd.runtime.links.links import AgentSocket, ManagerSocket
from tests.wire.peers import LIMIT_S, SECRET, ServingManager, ask

FLOODER = Path(__file__).parents[1] / "attacks" / "flooder.py"
FEW = 256
GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x01CURVE" + bytes(47)


@pytest.fixture
def few_descriptors(monkeypatch) -> Iterator[None]:
    """Limit descriptors to a few, and let handshakes take any time: only the number of connections ends one."""
    monkeypatch.setattr(links, "_HANDSHAKE_MS", 600_000)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def flooded(address: Address, held: int, per_second: int) -> Iterator[None]:
    """Run another process that holds so many connections, and opens more."""
    words = [sys.executable, FLOODER, address.host, address.port, held, per_second]
    unlimited = f'ulimit -n {resource.getrlimit(resource.RLIMIT_NOFILE)[1]}; exec "$@"'
    command = ["bash", "-c", unlimited, "bash", *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"held\n"
            yield
        finally:
            process.kill()


def opened(address: Address, words: bytes = b"") -> socket.socket:
    """Return a connection that the manager's thread for them has accepted: it greets every peer."""
    link = socket.create_connection((address.host, address.port), LIMIT_S)
    link.sendall(words)
    assert link.recv(1), "no greeting"
    return link


def has_ended(link: socket.socket) -> bool:
    """Return whether the other side has closed, as far as is known now."""
    link.setblocking(False)
    try:
        while link.recv(100):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True


def await_end(link: socket.socket) -> None:
    """Wait until the other side closes."""
    link.settimeout(LIMIT_S)
    with contextlib.suppress(ConnectionError):
        while link.recv(100):
            pass


def test_an_agent_gets_in_while_silent_ones_hold_more_than_there_are_descriptors(few_descriptors):
    with ServingManager() as manager, flooded(manager.address, 2 * FEW, 50):
        for number in range(3):
            with AgentSocket(manager.address, SECRET) as agent:
                ask(agent, number)


def test_the_oldest_silent_ones_are_ended_and_nobody_else(few_descriptors):
    """Neither a served agent is ended, nor a peer that has begun to send, nor the youngest."""
    many = FEW // 4 + 8
    with ServingManager() as manager, contextlib.ExitStack() as stack, AgentSocket(manager.address, SECRET) as agent:
        ask(agent, 1)
        begun = stack.enter_context(opened(manager.address, GREETING))
        silent = [stack.enter_context(opened(manager.address)) for _ in range(many)]
        for link in silent[:8]:
            await_end(link)
        assert not has_ended(begun)
        assert [has_ended(link) for link in silent[8:]] == [False] * (many - 8)
        assert agent.connected
        ask(agent, 2)


def test_those_who_only_begin_are_bounded_too(few_descriptors):
    with ServingManager() as manager, contextlib.ExitStack() as stack:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # for this side of so many
        begun = [stack.enter_context(opened(manager.address, GREETING[:9])) for _ in range(FEW // 2 + 8)]
        for link in begun[:8]:
            await_end(link)
        assert not has_ended(begun[8 + FEW // 4])


def test_a_manager_that_is_busy_does_not_stop_the_thread_of_its_connections():
    """Unread events of connections pile up meanwhile. All peers used to wait for them, and so did the manager's end."""
    manager = ManagerSocket(Address(LOOPBACK, 0), SECRET)
    try:
        with contextlib.suppress(TimeoutError):  # as it was before: no connection is accepted any more
            for _ in range(1_200):
                socket.create_connection((LOOPBACK, manager.address.port), 1.0).close()
        opened(manager.address).close()
    finally:
        while manager.poll(0.2):  # a thread that waits for this one could not be closed
            manager.receive()
        manager.close()


def test_a_turn_takes_a_portion_of_the_news(monkeypatch):
    with ManagerSocket(Address(LOOPBACK, 0), SECRET) as manager:
        monkeypatch.setattr("taskd.runtime.links.monitor._EVENTS_PER_CALL", 3)
        with contextlib.ExitStack() as stack:
            for _ in range(8):
                stack.enter_context(opened(manager.address))
            turns = 0
            while manager.poll(0):
                manager.receive()
                turns += 1
        assert turns >= 3


def connected_pair(stack: contextlib.ExitStack, port: int = 0) -> tuple[socket.socket, socket.socket, int]:
    """Return the accepted socket, its peer, and the port."""
    server = stack.enter_context(socket.create_server((LOOPBACK, port)))
    peer = stack.enter_context(socket.create_connection(server.getsockname()))
    return stack.enter_context(server.accept()[0]), peer, server.getsockname()[1]


def replaced_by(stack: contextlib.ExitStack, descriptor: int, what: str) -> Callable[[], bool]:
    """Give the number to another object. Return a function that checks whether that is intact."""
    if what == "file":
        file = os.open(os.devnull, os.O_RDONLY)
        stack.callback(os.close, file)
        os.dup2(file, descriptor)
        return lambda: os.read(descriptor, 1) == b""
    other, peer, _ = connected_pair(stack)
    if what == "pair":
        other, peer = (stack.enter_context(one) for one in socket.socketpair())
    os.dup2(other.fileno(), descriptor)
    return lambda: peer.send(b"x") == 1 and os.read(descriptor, 1) == b"x"


@pytest.mark.parametrize("what", ["file", "connection", "pair"])
@pytest.mark.parametrize("when", ["before it is noted", "after"])
def test_what_has_got_the_number_of_a_closed_connection_is_left_alone(what, when):
    with contextlib.ExitStack() as stack:
        accepted, _, port = connected_pair(stack)
        half_open = HalfOpen(1, 0)
        half_open.port = port
        stack.callback(half_open.close)
        if when == "after":
            half_open.accepted(accepted.fileno())
        is_whole = replaced_by(stack, accepted.fileno(), what)
        if when != "after":
            half_open.accepted(accepted.fileno())
        before = len(os.listdir("/proc/self/fd"))
        assert half_open.trim() == 0
        assert is_whole()
        assert len(os.listdir("/proc/self/fd")) == before


def test_without_a_descriptor_left_they_are_ended_all_the_same():
    with contextlib.ExitStack() as stack:
        accepted, peer, port = connected_pair(stack)
        half_open = HalfOpen(1, 0)
        half_open.port = port
        stack.callback(half_open.close)
        half_open.accepted(accepted.fileno())
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        with contextlib.suppress(OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))), hard))
            while True:
                stack.callback(os.close, os.dup(0))
        assert half_open.trim() == 1
        peer.settimeout(LIMIT_S)
        assert peer.recv(1) == b""


def test_a_flood_is_told_once_and_again_only_when_it_had_ended(caplog):
    caplog.set_level(logging.INFO, halfopen.__name__)
    flood = Flood(5)
    for number in range(10 * FLOOD):
        flood.take(1, 0.01 * number)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert f"{FLOOD} connections that say nothing" in caplog.text
    assert "NetworkPolicy" in caplog.text
    flood.take(0, 100.0)
    flood.take(0, 100.0 + WINDOW_S)
    flood.take(FLOOD, 100.0 + 2 * WINDOW_S)
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.INFO, logging.WARNING]
    assert f"they were {10 * FLOOD}" in caplog.text


def test_few_silent_ones_are_no_flood(caplog):
    flood = Flood(5)
    for number in range(10 * FLOOD):
        flood.take(1, 2 * WINDOW_S / FLOOD * number)
    assert not caplog.records
