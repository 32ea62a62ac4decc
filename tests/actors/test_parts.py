"""The parts between a process that starts by itself and its agent, without a job."""

import math
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskd.adaptors.actors.host import LOCAL, UNSEEN, ActorHost, Leaving
from taskd.adaptors.actors.pool import ActorPool
from taskd.adaptors.actors.ticket import Ticket
from taskd.errors import ConfigError, RecoveryError
from taskd.runtime.agent.ports import Logs
from taskd.runtime.agent.sockets import LocalServer
from taskd.wire.kinds import JobRank
from taskd.wire.messages import Stage

TICKET = Ticket("127.0.0.1", 9601, "5" * 64, "job", 2, "127.0.0.1", 1, "key")


@pytest.fixture
def process() -> Iterator["subprocess.Popen[bytes]"]:
    started = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    yield started
    started.kill()
    started.wait()


@pytest.fixture
def left() -> list[Leaving]:
    return []


@pytest.fixture
def host(process: "subprocess.Popen[bytes]", left: list[Leaving]) -> Iterator[ActorHost]:
    made = ActorHost(JobRank(1), 2, left.append)
    made.hold(process.pid)
    yield made
    made.close()


def test_a_ticket_survives_its_text() -> None:
    assert Ticket.from_json(TICKET.to_json()) == TICKET


def test_a_ticket_shows_no_secret() -> None:
    assert TICKET.secret not in repr(TICKET)
    assert TICKET.secret not in str(TICKET.entrance(0))
    assert not set(TICKET.entrance(0).names) & set(TICKET.entrance(1).names)
    assert TICKET.entrance(0).key != TICKET.entrance(1).key


@pytest.mark.parametrize("text", ["", "[]", "{}"])
def test_what_is_no_ticket_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"expected one made by taskd\.manager"):
        Ticket.from_json(text)


def test_it_waits_for_processes_without_end(run_dir: Path) -> None:
    server = LocalServer(run_dir / "agent.sock")
    try:
        assert ActorPool(server, 1, lambda: 0).wait_s == math.inf
    finally:
        server.close()


def test_nobody_starts_a_process(host: ActorHost) -> None:
    with pytest.raises(RecoveryError, match="no process has asked for rank 1"):
        host.spawn(LOCAL, {}, Logs(None, None, None))


def test_an_end_that_was_seen_is_known_afterwards(host: ActorHost, process: "subprocess.Popen[bytes]") -> None:
    host.kill(LOCAL, signal.SIGKILL)
    process.wait()
    assert host.judge(LOCAL, -9, Stage.TRAINING) == -9
    assert host.exit_status(LOCAL) == -9
    assert host.judge(LOCAL, UNSEEN, Stage.DEAD) == -9


def test_an_end_that_nobody_saw_is_no_good_one(
    host: ActorHost, process: "subprocess.Popen[bytes]", left: list[Leaving]
) -> None:
    assert host.exit_status(LOCAL) is None
    process.kill()
    process.wait()
    assert host.exit_status(LOCAL) == UNSEEN
    assert host.judge(LOCAL, UNSEEN, Stage.TRAINING) == UNSEEN
    assert left == []


def test_who_was_let_go_has_ended_well(
    host: ActorHost, process: "subprocess.Popen[bytes]", left: list[Leaving]
) -> None:
    assert host.judge(LOCAL, None, Stage.RELEASED) is None
    process.kill()
    process.wait()
    assert host.judge(LOCAL, -9, Stage.RELEASED) == 0
    assert left == [Leaving.ENDED_WELL]


def test_a_rank_is_deserted_if_nobody_leads_and_nobody_holds_it(
    host: ActorHost, process: "subprocess.Popen[bytes]"
) -> None:
    host.stock()
    assert not host.deserted
    process.kill()
    process.wait()
    assert host.deserted
    host.manage()
    assert not host.deserted
