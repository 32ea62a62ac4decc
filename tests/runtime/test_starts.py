"""A standby that was chosen for a rank becomes the rank. Otherwise it ends, and the rank starts cold."""

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from taskd.core.agent import Node, Start
from taskd.errors import RecoveryError
from taskd.runtime.agent.collector import EvidenceCollector
from taskd.runtime.agent.deaths import DeathWatch
from taskd.runtime.agent.ports import Command, Logs
from taskd.runtime.agent.rank_process import RankProcesses
from taskd.runtime.agent.rankfiles import RankFiles
from taskd.runtime.agent.standbys import StandbyPool
from taskd.runtime.agent.starts import Starts
from taskd.wire.kinds import JobRank, LocalRank
from taskd.wire.messages import Hello
from tests.launch import Launcher
from tests.runtime.host import NO_LOGS, Host
from tests.runtime.local import LIMIT_S, Ear, start

R1 = JobRank(1)


class PythonHost(Host):
    """Host of ranks that a standby can run, on a node that may have trouble."""

    def __init__(self) -> None:
        super().__init__()
        self.more: dict[str, str] = {}
        self.refusal: Exception | None = None
        self.log_error: Exception | None = None

    def environment(self, local_rank: LocalRank) -> dict[str, str]:
        return {**os.environ, **self.more}

    def command(self, local_rank: LocalRank) -> Command:
        return Command(("script.py",), True)

    def open_logs(self, local_rank: LocalRank, incarnation: int) -> Logs:
        if self.log_error is not None:
            raise self.log_error
        return NO_LOGS

    def adopt(self, local_rank: LocalRank, pid: int, env: Mapping[str, str], logs: Logs) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.calls.append(f"adopt {local_rank}")


@pytest.fixture
def host() -> Iterator[PythonHost]:
    host = PythonHost()
    yield host
    host.close()


Order = Callable[[PythonHost], tuple[Node, int | None]]


@pytest.fixture
def order(run_dir: Path, ear: Ear, launcher: Launcher) -> Iterator[Order]:
    """Yield a function that orders rank 1 while a standby waits. It returns the node and a dropped standby's status."""
    files, deaths = RankFiles(run_dir, "job"), DeathWatch()
    pool, processes = StandbyPool(ear.server, 1, lambda: -1), RankProcesses(files)
    starts = Starts(files, deaths, pool, processes, EvidenceCollector())

    def start_rank(host: PythonHost) -> tuple[Node, int | None]:
        processes.hold(host)
        waiting = start(launcher, "member.py", ear.server.path, "standby", 1)
        peer, hello = ear.until(lambda _peer, message: isinstance(message, Hello))
        assert isinstance(hello, Hello)
        pool.hello(peer, hello)
        node = Node()
        with suppress(OSError):  # it ends the agent: torchrun's own behaviour takes over
            starts.order(node, host, Start(R1, 1, 1, joins=True))
        return node, waiting.wait(LIMIT_S) if peer.link.fileno() < 0 else None

    yield start_rank
    deaths.close()
    files.close()


def test_a_standby_that_becomes_a_rank_is_the_pools_no_more(run_dir: Path, ear: Ear, launcher: Launcher) -> None:
    """The pool does not notice that the rank is reaped: its number is free for another standby."""
    files, deaths, host = RankFiles(run_dir, "job"), DeathWatch(), PythonHost()
    pool, processes = StandbyPool(ear.server, 1, lambda: -1), RankProcesses(files)
    starts = Starts(files, deaths, pool, processes, EvidenceCollector())
    processes.hold(host)
    standby = start(launcher, "member.py", ear.server.path, "standby", 1)
    peer, hello = ear.until(lambda _peer, message: isinstance(message, Hello))
    assert isinstance(hello, Hello)
    pool.hello(peer, hello)
    assert pool._met == {standby.pid}
    node = Node()
    starts.order(node, host, Start(JobRank(1), 1, 1, joins=True))
    assert host.calls == ["adopt 1"]
    assert node.slots[JobRank(1)].status.warm
    assert pool._met == set()
    ear.server.drop(peer)
    assert standby.wait(LIMIT_S) == 0
    deaths.close()
    files.close()
    host.close()


def test_a_standby_becomes_the_rank(host: PythonHost, order: Order) -> None:
    node, end = order(host)
    assert (host.calls, node.slots[R1].status.warm, end) == (["adopt 1"], True, None)


def test_a_rank_whose_order_cannot_be_sent_starts_cold(host: PythonHost, order: Order) -> None:
    host.more = {f"V{number}": "x" * 131_000 for number in range(70)}  # more than a message can hold
    node, end = order(host)
    assert (host.calls, node.slots[R1].status.warm, end) == (["spawn 1 1 1"], False, 0)


def test_a_standby_that_may_not_be_the_rank_is_killed_and_the_rank_starts_cold(host: PythonHost, order: Order) -> None:
    host.refusal = RecoveryError("it is another's child")
    node, end = order(host)
    assert (host.calls, node.slots[R1].status.warm, end) == (["spawn 1 1 1"], False, -9)


@pytest.mark.parametrize("refusal", [RecoveryError("torchrun is ending its ranks"), OSError(errno.ENOMEM, "no memory")])
def test_a_standby_that_was_ordered_while_torchrun_ends_its_ranks_is_killed(
    host: PythonHost, order: Order, refusal: Exception
) -> None:
    host.ends, host.refusal = True, refusal
    node, end = order(host)
    assert (host.calls, node.slots, end) == ([], {}, -9)


def test_a_standby_whose_rank_can_have_no_files_ends(host: PythonHost, order: Order) -> None:
    host.log_error = OSError(errno.ENOSPC, "no space left on device")
    node, end = order(host)
    assert (host.calls, node.slots, end) == ([], {}, 0)
