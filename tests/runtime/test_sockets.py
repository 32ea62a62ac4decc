"""The agent's Unix socket: whole packets, garbage refused, and the sender's identity from the kernel."""

import math
import os
import socket
from pathlib import Path

import pytest
from msgspec.structs import replace

from taskd.errors import LinkError
from taskd.runtime.agent.sockets import LocalServer
from taskd.runtime.system.descriptors import open_descriptors
from taskd.runtime.system.packets import receive_packet
from taskd.wire.codec import BadFrameError, decode_to_local, encode
from taskd.wire.kinds import JobRank
from taskd.wire.messages import Hello, Join, Modules, Release
from taskd.wire.standbys import Become
from tests.launch import Launcher
from tests.runtime.local import Ear, start
from tests.wire.test_codec import PLAN


def connect(server: LocalServer) -> socket.socket:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link.connect(str(server.path))
    link.settimeout(10)
    return link


def test_garbage_is_refused_and_the_connection_stays(ear: Ear, caplog: pytest.LogCaptureFixture) -> None:
    with connect(ear.server) as link:
        link.send(b"\xc1 no message")
        link.send(encode(Modules(names=("numpy",))))
        peer, message = ear.until(lambda _peer, message: True)
        assert message == Modules(names=("numpy",))
        assert f"refused a packet of process {os.getpid()}" in caplog.text
        assert peer.send(Release(generation=3))
        assert link.recv(1000) == encode(Release(generation=3))
    assert ear.until(lambda _peer, message: message is None)[0] is peer
    assert not peer.send(Release(generation=4)), "it is gone"


def test_a_process_cannot_pass_for_another(ear: Ear) -> None:
    with connect(ear.server) as link:
        link.send(encode(Hello(role="worker", pid=1, rank=JobRank(0))))
        peer, message = ear.until(lambda _peer, message: isinstance(message, Hello))
        assert isinstance(message, Hello)
        assert (message.pid, peer.pid) == (1, os.getpid())


def test_the_end_of_a_process_is_the_end_of_its_socket(ear: Ear, launcher: Launcher) -> None:
    process = start(launcher, "member.py", ear.server.path, "standby", 1)
    peer, _ = ear.until(lambda _peer, message: isinstance(message, Hello))
    assert peer.pid == process.pid
    process.kill()
    assert ear.until(lambda _peer, message: message is None)[0] is peer


def test_one_that_does_not_read_does_not_hold_the_agent_up(ear: Ear) -> None:
    with connect(ear.server) as link:
        link.send(encode(Modules(names=())))
        peer, _ = ear.until(lambda _peer, _message: True)
        while peer.send(Modules(names=("x" * 1000,))):
            pass


def test_a_large_message_comes_whole(ear: Ear) -> None:
    """It is larger than any datagram. Earlier messages of the process are received as before."""
    plan = replace(PLAN, members=tuple(map(JobRank, range(100_000))))
    env = {b"V%d" % number: b"\xff" * 100_000 for number in range(60)}
    with connect(ear.server) as link:
        link.send(encode(Modules(names=())))
        peer, _ = ear.until(lambda _peer, _message: True)
        before = open_descriptors()
        for message in (Become(env=env, argv=(), cwd=None), Join(plan=plan), Release(generation=3)):
            assert peer.send(message)
            assert decode_to_local(receive_packet(link)) == message
        assert open_descriptors() == before


def test_what_cannot_be_sent_does_not_reach_the_sender(ear: Ear, caplog: pytest.LogCaptureFixture) -> None:
    with connect(ear.server) as link:
        link.send(encode(Modules(names=())))
        peer, _ = ear.until(lambda _peer, _message: True)
        assert not peer.send(Become(env={b"V": b"x" * (1 << 20)}, argv=(), cwd=None)), "no variable is as long as that"
        assert not peer.send(Join(plan=replace(PLAN, timeout_s=math.inf)))
        assert peer.send(Release(generation=3))
        assert decode_to_local(receive_packet(link)) == Release(generation=3)
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        f"nothing was sent to process {os.getpid()}"
    ] * 2


def test_a_file_that_is_cut_short_is_a_bad_frame(ear: Ear) -> None:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, far, open(os.memfd_create("cut"), "wb") as file:
        file.write(encode(Become(env={b"V": b"x" * 150_000, b"W": b"x" * 150_000}, argv=(), cwd=None))[:200_000])
        file.flush()
        socket.send_fds(near, [b"\0"], [file.fileno()])
        with pytest.raises(BadFrameError):
            decode_to_local(receive_packet(far))


def test_the_agent_takes_no_file(ear: Ear) -> None:
    with connect(ear.server) as link, open("/dev/null", "rb") as file:
        socket.send_fds(link, [encode(Modules(names=("numpy",)))], [file.fileno()])
        before = open_descriptors()
        _, message = ear.until(lambda _peer, message: True)
        assert message == Modules(names=("numpy",))
        assert open_descriptors() == before + 1, "that of the connection alone"


def test_a_path_that_cannot_be_bound(run_dir: Path) -> None:
    with pytest.raises(LinkError, match="set TASKD_RUN_DIR"):
        LocalServer(run_dir / "missing" / "agent.sock")
