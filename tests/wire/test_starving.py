"""A manager without descriptors blames no peer's secret."""

import socket
import subprocess
import sys
from pathlib import Path

from taskd.config.address import LOOPBACK, Address
from taskd.runtime.links.links import AgentSocket
from tests.wire.peers import SECRET, until

ROOT = Path(__file__).parents[2]


def test_descriptors_are_named_and_no_secret_is_blamed() -> None:
    """Peers that gave up before they were accepted are counted when there are descriptors again."""
    assert SECRET.secret is not None
    pipe = subprocess.PIPE
    words = [sys.executable, "-m", "tests.wire.starving_manager", SECRET.secret.decode()]
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=ROOT) as manager:
        assert manager.stdout is not None
        assert manager.stdin is not None
        assert manager.stderr is not None
        address = Address(LOOPBACK, int(manager.stdout.readline()))
        for _ in range(5):
            socket.create_connection((address.host, address.port)).close()
        told = manager.stderr.readline()
        manager.stdin.write("more\n")
        manager.stdin.flush()
        with AgentSocket(address, SECRET) as agent:
            until(agent, lambda _: agent.connected)
        said, more = manager.communicate()
    assert "no descriptor is left for another connection" in told
    assert "ulimit -n" in told
    assert "secret" not in told + more
    assert said == "refused 5\n"
