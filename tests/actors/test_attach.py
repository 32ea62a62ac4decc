"""A process that requests a rank gets an answer near its time limit, whatever delays the agent."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from taskd.adaptors.actors import attach as attaching
from taskd.adaptors.actors.attach import attach
from taskd.adaptors.actors.door import _address
from taskd.adaptors.actors.ticket import Ticket
from taskd.errors import LinkError
from taskd.wire.kinds import JobRank

SLEEPER = "#!/bin/sh\nexec sleep 1000\n"
SAYS_NOTHING = """#!/bin/sh
cat > /dev/null
sleep 1000 &
echo $! > {pid}
"""


@pytest.fixture
def ticket() -> Ticket:
    return Ticket("127.0.0.1", 9, "5" * 64, f"job-{os.urandom(4).hex()}", 2, "127.0.0.1", 1, "key")


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def begin_as(program: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this program run in place of the agent's interpreter."""
    path = folder / "python"
    path.write_text(program)
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))
    monkeypatch.setattr(attaching, "_REACH_S", 0.5)


def refused_after(ticket: Ticket, limit_s: float) -> tuple[float, str]:
    begun_s = time.monotonic()
    with pytest.raises(LinkError) as raised:
        attach(ticket, 1, limit_s)
    return time.monotonic() - begun_s, str(raised.value)


@pytest.mark.timed
def test_an_agent_that_does_not_read_its_ticket(
    ticket: Ticket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its interpreter hangs at its start, as on a file server that does not answer."""
    begin_as(SLEEPER, tmp_path, monkeypatch)
    took_s, said = refused_after(ticket, 0.1)
    assert 0.5 <= took_s < 3.0
    assert said.startswith("the agent of rank 1 has not begun in time")
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    assert "sleep" not in [Path(f"/proc/{child}/comm").read_text().strip() for child in children], "it was ended"


@pytest.mark.timed
def test_an_agent_that_says_nothing(ticket: Ticket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin_as(SAYS_NOTHING.format(pid=tmp_path / "pid"), tmp_path, monkeypatch)
    took_s, said = refused_after(ticket, 1.0)
    subprocess.run(["kill", (tmp_path / "pid").read_text().strip()], check=True)
    assert 1.0 <= took_s < 3.5
    assert "expected it within 30 s and this call's timeout" in said


@pytest.mark.timed
def test_silent_strangers_at_all_names(ticket: Ticket, opened: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """They cost a rank one wait for all eight, and its agent finds no name."""
    monkeypatch.setattr(attaching, "_REACH_S", 0.5)
    for name in ticket.entrance(JobRank(1)).names:
        end = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        end.bind(_address(name))
        end.listen(8)
    took_s, _ = refused_after(ticket, 1.0)
    assert 1.0 <= took_s < 3.5
