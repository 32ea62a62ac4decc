"""A rank whose order no standby can be sent starts cold, and what was waiting for it ends."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from taskd.core.agent import Node, Start
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
from tests.runtime.host import Host
from tests.runtime.local import LIMIT_S, Ear, start


class PythonHost(Host):
    """Ranks that a standby could run, with more variables than a message may have."""

    def environment(self, local_rank: LocalRank) -> dict[str, str]:
        return {**os.environ, **{f"V{number}": "x" * 131_000 for number in range(70)}}

    def command(self, local_rank: LocalRank) -> Command:
        return Command(("script.py",), True)


class AdoptingHost(Host):
    """Ranks that a standby becomes."""

    def command(self, local_rank: LocalRank) -> Command:
        return Command(("script.py",), True)

    def adopt(self, local_rank: LocalRank, pid: int, env: Mapping[str, str], logs: Logs) -> None:
        self.calls.append(f"adopt {local_rank} {pid}")


@pytest.fixture
def host() -> Iterator[PythonHost]:
    host = PythonHost()
    yield host
    host.close()


def test_a_rank_whose_order_cannot_be_sent_starts_cold(
    run_dir: Path, ear: Ear, host: PythonHost, launcher: Launcher
) -> None:
    files, deaths = RankFiles(run_dir, "job"), DeathWatch()
    pool, processes = StandbyPool(ear.server, 1, lambda: -1), RankProcesses(files)
    starts = Starts(files, deaths, pool, processes, EvidenceCollector())
    processes.hold(host)
    waiting = start(launcher, "member.py", ear.server.path, "standby", 1)
    peer, hello = ear.until(lambda _peer, message: isinstance(message, Hello))
    assert isinstance(hello, Hello)
    pool.hello(peer, hello)
    node = Node()
    starts.order(node, host, Start(JobRank(1), 1, 1, joins=True))
    assert host.calls == ["spawn 1 1 1"]
    assert not node.slots[JobRank(1)].status.warm
    assert waiting.wait(LIMIT_S) == 0
    deaths.close()
    files.close()


def test_a_standby_that_becomes_a_rank_is_the_pools_no_more(run_dir: Path, ear: Ear, launcher: Launcher) -> None:
    """The pool does not hear when it is reaped: its number is free for another standby."""
    files, deaths, host = RankFiles(run_dir, "job"), DeathWatch(), AdoptingHost()
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
    assert host.calls == [f"adopt 1 {standby.pid}"]
    assert node.slots[JobRank(1)].status.warm
    assert pool._met == set()
    ear.server.drop(peer)
    assert standby.wait(LIMIT_S) == 0
    deaths.close()
    files.close()
    host.close()
