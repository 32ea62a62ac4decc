"""The agent's Unix socket: whole packets, garbage refused, and the kernel's word for who speaks."""

import os
import socket
from pathlib import Path

import pytest

from taskd.errors import LinkError
from taskd.runtime.agent.sockets import LocalServer
from taskd.wire.codec import encode
from taskd.wire.kinds import JobRank
from taskd.wire.messages import Hello, Modules, Release
from tests.launch import Launcher
from tests.runtime.local import Ear, start


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


def test_a_path_that_cannot_be_bound(run_dir: Path) -> None:
    with pytest.raises(LinkError, match="set TASKD_RUN_DIR"):
        LocalServer(run_dir / "missing" / "agent.sock")
