"""The nodes themselves: their shared and own parts, their loss, and their complete removal."""

import os
import select
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.e2e.job import ROOT
from tests.launch import Launcher
from tests.leaks import marked
from tests.nodes import Node, Nodes

pytestmark = [pytest.mark.root]
PORT = 5000
LIMIT_S = 10.0
SILENCE_S = 0.4
"""Limit of an answer, in seconds: long for two nodes on one machine."""

PROGRAMS = Path(__file__).with_name("programs")


def ask(node: Node, folder: Path, command: str) -> list[str]:
    """Return the lines that a shell command in a node writes."""
    output = folder / "answer"
    output.unlink(missing_ok=True)
    assert node.start(["sh", "-c", command], output=output).wait(LIMIT_S) == 0, output.read_text()
    return output.read_text().splitlines()


def hear(reader: int) -> bytes:
    """Return the next bytes over a pipe."""
    assert select.select([reader], [], [], LIMIT_S)[0], f"nothing within {LIMIT_S:g} s"
    return os.read(reader, 100)


def serve(node: Node, folder: Path) -> "subprocess.Popen[bytes]":
    """Start a server that echoes. It already listens."""
    pipe = folder / f"pipe-{node.name}"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        server = node.start(["python", PROGRAMS / "echo.py", str(PORT)], output=pipe)
        assert hear(reader) == b"listens\n"
    finally:
        os.close(reader)
    return server


def connect(client: Node, server: Node) -> socket.socket:
    link = client.socket()
    link.settimeout(LIMIT_S)
    link.connect((server.address, PORT))
    return link


def echoes(link: socket.socket, limit_s: float = LIMIT_S) -> bool:
    """Return whether the other side answers in time. Fail when the connection ends."""
    link.settimeout(limit_s)
    try:
        link.send(b"x")
        assert link.recv(10), "the connection has ended"
    except TimeoutError:
        return False
    return True


def test_what_is_a_nodes_own(nodes: Nodes, tmp_path: Path) -> None:
    """Name, addresses, pids, /dev/shm and TMPDIR are its own; files elsewhere and the working folder are not."""
    look = "hostname; echo mine > /dev/shm/it; ls /dev/shm $TMPDIR; touch $TMPDIR/$(hostname); pwd; getent hosts node2"
    (tmp_path / "shared").touch()
    for node in (nodes[0], nodes[1]):
        assert ask(node, tmp_path, f"test -e {tmp_path}/shared && {{ {look}; }}") == [
            *(node.name, "/dev/shm:", "it", "", "/run/tmp:", str(Path.cwd())),
            "10.77.0.3       node2",
        ]
        assert node.file("/dev/shm/it").read_text() == "mine\n"
    assert not Path("/dev/shm/it").exists()
    nodes.rename("master", nodes[2])
    assert ask(nodes[1], tmp_path, "getent hosts master") == ["10.77.0.3       master"]
    process = nodes[1].start(["sh", "-c", "sleep 100 & exec sleep 100"])
    inside = {outside: pid for pid, outside in nodes[1].pids().items()}[process.pid]
    assert inside < 1000
    nodes[1].kill(inside, signal.SIGTERM)
    assert process.wait(LIMIT_S) == -signal.SIGTERM
    with pytest.raises(ProcessLookupError, match="node1 has no process"):
        nodes[1].kill(inside)


def test_all_processes_of_a_node_are_killed(nodes: Nodes, tmp_path: Path, leak_mark: str) -> None:
    """Processes with their own session are killed, too. Connections of peers end, and a new boot serves again."""
    server = serve(nodes[0], tmp_path)
    nodes[0].start(["sh", "-c", "setsid setsid sleep 100 & exec sleep 100"])
    with connect(nodes[1], nodes[0]) as link:
        assert echoes(link)
        before = set(nodes[0].pids().values())
        nodes[0].kill_all()
        assert before.isdisjoint(marked(leak_mark))
        assert server.returncode == -signal.SIGKILL
        assert link.recv(1) == b""
    nodes[0].boot()
    (tmp_path / "pipe-node0").unlink()
    serve(nodes[0], tmp_path)
    with connect(nodes[1], nodes[0]) as link:
        assert echoes(link)


def test_power_off_is_silent(nodes: Nodes, tmp_path: Path) -> None:
    serve(nodes[0], tmp_path)
    with connect(nodes[1], nodes[0]) as link:
        assert echoes(link)
        nodes[0].power_off()
        assert not echoes(link, SILENCE_S)


def test_partitions(nodes: Nodes, tmp_path: Path) -> None:
    """Connections survive them, and data that were sent meanwhile arrive."""
    for node in (nodes[0], nodes[2]):
        serve(node, tmp_path)
    with connect(nodes[1], nodes[0]) as near, connect(nodes[1], nodes[2]) as far:
        nodes[0].cut()
        assert not echoes(near, SILENCE_S)
        assert echoes(far)
        nodes[0].mend()
        assert echoes(near)
        nodes.part(nodes[0], nodes[1])
        assert not echoes(far, SILENCE_S)
        assert echoes(near)
        for node in (nodes[0], nodes[1]):
            node.mend()
        assert echoes(far)


def test_nothing_is_left_when_their_owner_is_killed(
    nodes: Nodes, launcher: Launcher, leak_mark: str, tmp_path: Path
) -> None:
    """They do not collide with those of another process either."""
    assert nodes[1].up
    known = set(marked(leak_mark))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        owner = launcher.start(["python", PROGRAMS / "nodes_of_its_own.py", pipe], env={"PYTHONPATH": str(ROOT)})
        assert hear(reader) == b"runs\n"
        theirs = [os.pidfd_open(pid) for pid in set(marked(leak_mark)) - known]
        assert len(theirs) >= 5, "the owner, the hub, two nodes, and what runs in them"
        owner.kill()
        for handle in theirs:
            with os.fdopen(handle):
                assert select.select([handle], [], [], LIMIT_S)[0]
    finally:
        os.close(reader)


def test_nodes_that_cannot_be_made(launcher: Launcher) -> None:
    """The error for a user other than root names the reason."""
    nobody = "import os\nfrom tests.nodes import Nodes\nos.setuid(65534)\nwith Nodes(1): pass"
    status, output = launcher.run(["python", "-c", nobody])
    assert status == 1
    assert "NodesUnavailableError: found user 65534, expected root" in output
