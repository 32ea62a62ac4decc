"""Worlds of real gloo processes: rebuilt, pretended, broken off."""

import os
import signal
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from torch._C._distributed_c10d import TCPStore

from tests.launch import Launcher
from tests.training.job import ENVIRONMENT, run_ranks

MEMBER = Path(__file__).with_name("member.py")
NEWCOMER = Path(__file__).with_name("newcomer.py")


@pytest.fixture
def port() -> Iterator[int]:
    """Yield the port of a store that lives for one test, and not the store: pytest would keep that alive."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield store.port
    del store


def environment(rank: str, size: int, port: int) -> dict[str, str]:
    world = {"RANK": rank, "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return {**ENVIRONMENT, **world, "TORCHELASTIC_USE_AGENT_STORE": "True"}


def all_succeed(launcher: Launcher, case: str, size: int, port: int) -> None:
    """Run all members as forks of one process that has imported torch, and check that they succeed."""
    env = environment("{rank}", size, port)
    statuses, output = run_ranks(launcher, size, MEMBER, case, "{rank}", str(size), str(port), env=env)
    assert statuses == [0] * size, output


class Members:
    """Members that are each a process of its own, which a test may kill."""

    program = MEMBER

    def __init__(self, launcher: Launcher, case: str, size: int, port: int) -> None:
        self.launcher = launcher
        self.case, self.size, self.port = case, size, port
        self.processes = [self._start(rank) for rank in self.ranks()]

    def ranks(self) -> Sequence[int]:
        return range(self.size)

    def _start(self, rank: int):
        command = ["python", str(self.program), self.case, str(rank), str(self.size), str(self.port)]
        return self.launcher.start(command, env=environment(str(rank), self.size, self.port))

    def expect_success(self, ranks: range) -> None:
        for rank in ranks:
            process = self.processes[rank]
            status = process.wait(80)
            assert status == 0, f"rank {rank}: {status}\n{self.launcher.output(process)}"


class Holders(Members):
    program = Path(__file__).with_name("holder.py")


class Newcomer(Members):
    """Rank 2, alone."""

    program = NEWCOMER

    def ranks(self) -> Sequence[int]:
        return [2]


@pytest.mark.thorough
@pytest.mark.slow
def test_two_hundred_rebuilds(launcher: Launcher, port: int) -> None:
    all_succeed(launcher, "rounds", 3, port)


@pytest.mark.timed
@pytest.mark.parametrize("case", ["new_groups_after", "different", "interrupted"])
def test_rebuild(launcher: Launcher, port: int, case: str) -> None:
    all_succeed(launcher, case, 2, port)


@pytest.mark.parametrize("case", ["alone", "kept_default"])
def test_what_holds_a_group_goes_on_to_work(launcher: Launcher, port: int, case: str) -> None:
    Holders(launcher, case, 2, port).expect_success(range(2))


def test_groups_settle(launcher: Launcher, port: int) -> None:
    all_succeed(launcher, "settles", 2, port)


@pytest.mark.parametrize(("case", "size"), [("shrinks", 4), ("new_groups_in_a_smaller_world", 3), ("meshes", 3)])
def test_fewer_members(launcher: Launcher, port: int, case: str, size: int) -> None:
    all_succeed(launcher, case, size, port)


def test_plans_that_cannot_be(launcher: Launcher, port: int) -> None:
    Members(launcher, "outside", 1, port).expect_success(range(1))


@pytest.mark.timed
@pytest.mark.parametrize("case", ["unstick", "abandon", "never_formed", "own_timeout"])
def test_a_stopped_peer(launcher: Launcher, port: int, case: str) -> None:
    members = Members(launcher, case, 3, port)
    members.expect_success(range(2))
    os.kill(members.processes[2].pid, signal.SIGKILL)


@pytest.mark.parametrize("case", ["alone", "dead_store", "dropped", "refused"])
def test_a_newcomer_needs_nobody(launcher: Launcher, case: str) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound but not listening: a connection is refused
        Newcomer(launcher, case, 4, closed.getsockname()[1]).expect_success(range(1))


def test_a_lone_group_in_a_real_world(launcher: Launcher, port: int) -> None:
    Newcomer(launcher, "alone_no_more", 4, port).expect_success(range(1))
