"""Peers that the link refuses, with a report. An honest agent never notices."""

import contextlib
import logging
import os
import socket

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from taskd.config.address import LOOPBACK, Address
from taskd.config.security import Security
from taskd.errors import SecretError
from taskd.runtime.links.identity import Role, keys_from_secret
from taskd.runtime.links.links import STRANGER, AgentSocket, ManagerSocket
from taskd.wire import codec
from tests.wire.peers import (
    ANOTHER_JOB,
    LIMIT_S,
    NONE,
    OTHER,
    SECRET,
    ServingManager,
    ask,
    directive,
    raw_dealer,
    refused,
    status,
    until,
)


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
    assert sorted(told) == ["taskd.runtime.links.links", "taskd.runtime.links.monitor"]  # each side once


def test_a_secret_of_two_jobs_opens_to_each_only_its_own(caplog):
    """The keys of one are no keys of the other. Both sides name their jobs."""
    with ServingManager() as manager:
        with AgentSocket(manager.address, ANOTHER_JOB) as stray, AgentSocket(manager.address, SECRET) as agent:
            until(stray, lambda _: stray.trouble is not None)
            assert "manages another job than 'another'" in stray.trouble
            assert "secret or job id differ" in stray.trouble
            assert not stray.connected
            assert not stray.send(status())
            refused(manager, STRANGER)
            ask(agent, 1)
        (told,) = [r.getMessage() for r in caplog.records if r.name == "taskd.runtime.links.links"]
        assert "the secret of job 'default'; either the peer has another secret or job id" in told
        assert manager.served == 1
    with ServingManager(security=ANOTHER_JOB) as manager, AgentSocket(manager.address, ANOTHER_JOB) as agent:
        ask(agent, 1)


def test_a_peer_with_the_secret_cannot_harm_with_garbage(manager, caplog):
    newer = codec.MAGIC + b"\x09" + codec.encode(status())[3:]
    bad = {
        codec.FrameFault.MAGIC: [b"", b"hello", os.urandom(1000)],
        codec.FrameFault.VERSION: [newer],
        codec.FrameFault.CONTENT: [codec.HEADER + b"\xc1", codec.encode(directive(1)), codec.encode(status())[:-1]],
        codec.FrameFault.SIZE: [b"x" * (codec.MAX_FRAME_BYTES + 1)],
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
    logged = [record.getMessage() for record in caplog.records if record.name == "taskd.runtime.links.links"]
    assert len(logged) == len(bad), logged  # once per kind and peer
    assert all(LOOPBACK in line for line in logged)


def test_many_large_frames_at_once_hold_nobody_up():
    """The sum of the frames in one turn is bounded, too: each may have 8 MiB, and a turn 256 of them."""
    context = zmq.Context()
    with ManagerSocket(Address(LOOPBACK, 0), NONE) as manager:
        dealers = [raw_dealer(manager.address, context, None) for _ in range(6)]
        for dealer in dealers:
            for _ in range(2):
                dealer.send(b"x" * codec.MAX_FRAME_BYTES)
        turns, before = [], 0
        while before < 12:
            assert manager.poll(LIMIT_S)
            assert manager.receive() == []
            turns.append(manager.refused["magic"] - before)
            before += turns[-1]
        assert max(turns) <= 4
    context.destroy(linger=0)


def test_a_message_of_many_parts_is_dropped_as_it_comes():
    """It is one message to ZeroMQ, with parts as large as allowed. It is not collected."""
    context = zmq.Context()
    with ManagerSocket(Address(LOOPBACK, 0), NONE) as manager, AgentSocket(manager.address, NONE) as agent:
        dealer = raw_dealer(manager.address, context, None)
        dealer.send_multipart([b"x" * 100_000] * 100)
        assert manager.poll(LIMIT_S)
        while not (found := list(manager._frames())):
            assert manager.poll(LIMIT_S)
        assert [len(frames) for frames in found] == [3]
        assert sum(len(frame) for frame in found[0]) < 300_000
        dealer.send_multipart([b"x" * 100_000] * 100)
        while not manager.refused["content"]:
            assert manager.poll(LIMIT_S)
            assert manager.receive() == []
        until(agent, lambda _: agent.connected)
        assert agent.send(status())
        while not manager.receive():
            assert manager.poll(LIMIT_S)
    context.destroy(linger=0)


def test_knowing_the_managers_key_is_not_enough(manager):
    """The handshake needs the manager's public key, the gate the agents' own: a leaked public key opens nothing."""
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.curve_publickey, dealer.curve_secretkey = zmq.curve_keypair()
    dealer.curve_serverkey = keys_from_secret(SECRET.secret, Role.MANAGER, SECRET.job_id).public
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
