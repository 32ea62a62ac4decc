"""Records of one node's processes."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskd.runtime.agent.ports import Command
from taskd.runtime.agent.rank_process import RankProcesses
from taskd.runtime.agent.rankfiles import RankFiles
from taskd.runtime.agent.shape import Shape
from taskd.runtime.agent.sockets import Peer
from taskd.wire.kinds import JobRank, LocalRank
from taskd.wire.messages import Abandon, FromLocal, Hello, SelfReport
from tests.runtime.host import Host

R0, R1 = JobRank(0), JobRank(1)


@pytest.fixture
def files(run_dir: Path) -> Iterator[RankFiles]:
    made = RankFiles(run_dir, "job")
    yield made
    made.close()


@pytest.fixture
def processes(files: RankFiles) -> Iterator[RankProcesses]:
    """Yield the records of a node that holds two ranks."""
    host = Host()
    made = RankProcesses(files)
    made.hold(host)
    yield made
    host.close()


@pytest.fixture
def peer() -> Iterator[Peer]:
    """Yield the agent's end of a socket to this very process."""
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with mine, its:
        yield Peer(mine)


def test_numbers_only_rise(processes: RankProcesses) -> None:
    assert processes.number_fresh(LocalRank(1), 5) == (0, 5)
    processes.number(LocalRank(1), 4, 7)
    assert processes.number_fresh(LocalRank(1), 7) == (5, 8), "torchrun has restarted the group"
    processes.number(LocalRank(1), 6, 2)
    assert processes.generation == 8


def test_a_rank_without_a_process_says_nothing(processes: RankProcesses, peer: Peer) -> None:
    assert not processes.hello(peer, Hello(role="worker", pid=peer.pid, rank=R1), "")
    assert (processes.by_pid(-1), processes.box(R1), processes.any_peer()) == (None, None, None)


def test_only_the_newest_process_of_a_rank_is_heard_and_spoken_to(processes: RankProcesses, peer: Peer) -> None:
    hello = Hello(role="worker", pid=peer.pid, rank=R1, incarnation=0)
    processes.begin(R1, 0, peer.pid)
    assert processes.hello(peer, hello, "")
    assert (processes.rank_of(peer), processes.tell_all(Abandon(reason="it is told"))) == (1, {1})
    processes.begin(R1, 1, peer.pid + 1)
    assert not processes.hello(peer, hello, "")
    assert (processes.rank_of(peer), processes.any_peer(), processes.tell_all(Abandon(reason="it is not"))) == (
        None,
        None,
        set(),
    )


def test_the_box_of_a_process_that_was_replaced_is_kept_when_it_is_gone(
    processes: RankProcesses, files: RankFiles, run_dir: Path
) -> None:
    paths = [files.prepare(LocalRank(1), incarnation, 0, Shape(), joins=False).blackbox for incarnation in (0, 1)]
    processes.begin(R1, 0, 11)
    processes.begin(R1, 1, 12)
    former = processes.by_pid(11)
    assert former is not None
    assert not processes.holds(former)
    processes.end(former)
    assert processes.by_pid(11) is None
    assert [path is not None and path.exists() for path in paths] == [False, True]
    assert [path.name for path in run_dir.glob("*/boxes/*")] == ["rank-1-incarnation-0.box"]
    assert processes.box(R1) is files.box(LocalRank(1), 1) is not None


class WrapperHost(Host):
    def command(self, local_rank: LocalRank) -> Command:
        return Command(("train.sh",), False, "a wrapper", wrapper=True)


def test_a_wrapped_rank_that_connects_anew_is_still_the_rank(files: RankFiles, peer: Peer) -> None:
    """Its script has closed all descriptors. The end of the former socket may arrive later."""
    host, processes = WrapperHost(), RankProcesses(files)
    host.close()
    processes.hold(host)
    processes.begin(R1, 0, os.getsid(0))
    hello = Hello(role="worker", pid=peer.pid, rank=R1)
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with mine, its:
        assert processes.hello(peer, hello, "")
        anew = Peer(mine)
        assert processes.hello(anew, hello, "")
        processes.gone(peer)
        assert (processes.rank_of(anew), processes.any_peer()) == (R1, anew)


def test_a_node_that_has_lost_its_place_still_knows_its_processes(processes: RankProcesses) -> None:
    processes.begin(R0, 0, 11)
    processes.let_go()
    former = processes.by_pid(11)
    assert former is not None
    assert not processes.holds(former)
    assert list(processes) == []


def test_what_a_process_says_before_torchrun_has_started_all_is_kept(processes: RankProcesses, peer: Peer) -> None:
    incarnation, _ = processes.number_fresh(LocalRank(1), 0)
    said: list[tuple[Peer, FromLocal | None]] = [
        (peer, Hello(role="worker", pid=peer.pid, rank=R1, incarnation=incarnation)),
        (peer, SelfReport(cause="ValueError: it has no data")),
        (peer, None),
    ]
    standby: list[tuple[Peer, FromLocal | None]] = [(peer, Hello(role="standby", pid=peer.pid))]
    assert list(processes.in_time([*standby, *said[:1]])) == standby
    assert list(processes.in_time(said[1:])) == []
    processes.begin(R1, incarnation, peer.pid)
    processes.named()
    assert list(processes.in_time(standby)) == [*said, *standby]
    assert list(processes.in_time(said)) == said, "from now on all is received at once"
