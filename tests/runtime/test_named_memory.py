"""If the kernel denies ranks access to an agent's descriptors, the agent's memory and socket have names."""

import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from taskd.adaptors.training.positions.position_file import PositionFile
from taskd.config.agent import AgentConfig
from taskd.core.rendezvous import Rendezvous
from taskd.runtime.agent.agent import NodeAgent
from taskd.runtime.agent.ports import NodeIdentity
from taskd.runtime.agent.rankfiles import RankFiles
from taskd.runtime.agent.shape import Shape
from taskd.runtime.folders import nameless
from taskd.runtime.folders.nameless import open_kept, read_record, write_record
from taskd.wire.kinds import JobRank, LocalRank, NodeRank
from tests.runtime.host import Host

L0 = LocalRank(0)
CLOSED = """
import ctypes, os, subprocess, sys
from pathlib import Path
from taskd.runtime.agent.rankfiles import RankFiles
from taskd.runtime.agent.shape import Shape
from taskd.wire.kinds import LocalRank

if os.geteuid():
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: what file capabilities do
else:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)  # a launcher that changes the user and runs torchrun without exec
files = RankFiles(Path(sys.argv[1]), "job")
server = files.server(listens=True)
rank = files.prepare(LocalRank(0), 0, 0, Shape(), joins=False)
looks = ["sh", "-ec", 'test -S "$0"; for path do : >> "$path"; done', str(rank.agent_socket)]
looked = subprocess.run([*looks, *map(str, (rank.position, rank.setup, rank.marks, *rank.copies))])
left = sorted(os.listdir(files.directory))
server.close()
files.close()
print(looked.returncode, len(left), files.directory.exists())
"""


@pytest.fixture
def files(run_dir: Path) -> Iterator[RankFiles]:
    """Yield the files of an agent whose ranks are started by a wrapper."""
    made = RankFiles(run_dir, "job", named=True)
    yield made
    made.close()


def test_ranks_reach_an_agent_whose_descriptors_are_closed_to_them(tmp_path: Path) -> None:
    """A trial in the agent itself would succeed: the kernel always grants a process access to itself."""
    done = subprocess.run([sys.executable, "-c", CLOSED, tmp_path], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["0", "11", "False"], done.stderr


def test_an_agent_without_proc_gives_names(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nameless, "_PROCESSES", run_dir)
    files = RankFiles(run_dir, "job")
    rank = files.prepare(L0, 0, 0, Shape(), joins=False)
    assert rank.position is not None
    assert rank.position.parent == files.directory
    files.close()


def test_a_rank_uses_memory_with_names_like_any_other(files: RankFiles) -> None:
    server = files.server(listens=True)
    assert (server.path, server.path.is_socket()) == (files.directory / "agent.sock", True)
    server.close()
    first = files.prepare(L0, 0, 0, Shape(), joins=False)
    assert first.position is not None
    assert first.setup is not None
    assert {first.position.parent, *(path.parent for path in first.copies)} == {files.directory}
    assert stat.S_IMODE(first.position.stat().st_mode) == 0o600
    write_record(first.setup, b"results")
    PositionFile(str(first.position)).close()
    again = files.prepare(L0, 1, 1, Shape(), joins=True)
    assert (again.position, read_record(again.setup or Path())) == (first.position, b"results")
    files.forget(L0)
    assert not first.position.exists()
    assert [entry.name for entry in files.directory.iterdir() if not entry.name.startswith("box-")] == []


def test_memory_with_names_is_made_anew_in_a_swept_directory(files: RankFiles) -> None:
    first = files.prepare(L0, 0, 0, Shape(), joins=False)
    shutil.rmtree(files.directory)
    again = files.prepare(L0, 1, 1, Shape(), joins=True)
    assert again.position not in (None, first.position)
    os.close(open_kept(again.position or Path()))


def test_what_a_dead_agent_left_is_swept(files: RankFiles, run_dir: Path) -> None:
    files.prepare(L0, 0, 0, Shape(), joins=False)
    left = files.directory.with_name(f"taskd-{2**22 + 1}-left")
    shutil.copytree(files.directory, left)
    RankFiles(run_dir, "job").close()
    assert not left.exists()


def test_ranks_of_a_deserted_agent_write_to_nothing_else(run_dir: Path) -> None:
    """Files that torchrun opens next do not get the descriptor numbers that ranks in their set-up still use."""
    files = RankFiles(run_dir, "job")
    rank = files.prepare(L0, 0, 0, Shape(), joins=False)
    assert rank.setup is not None
    files.deserted = True
    files.close()
    with ExitStack() as opened:
        logs = {opened.enter_context(tempfile.TemporaryFile()).fileno() for _ in range(20)}
        for path in (rank.setup, *rank.copies):
            assert int(path.name) not in logs
            with pytest.raises(OSError, match="expected a regular file"):
                write_record(path, b"results")
        for held in filter(None, (rank.position, rank.setup, rank.marks, *rank.copies)):
            os.close(int(held.name))


def test_an_agent_that_leaves_its_ranks_to_torchrun_holds_the_numbers(run_dir: Path) -> None:
    host = Host()
    config = AgentConfig.from_environment({"TASKD_RUN_DIR": str(run_dir), "TASKD_STANDBY": "0"})
    agent = NodeAgent(config, lambda: Rendezvous("127.0.0.1", 1))
    said = " ".join(value for rank in Host.local_ranks for value in agent.worker_environment(rank).values())
    memory = {int(number) for number in re.findall(rf"/proc/{os.getpid()}/fd/(\d+)", said)}
    agent.started(host, NodeIdentity(NodeRank(0), 1, (JobRank(0), JobRank(1)), None, 5))
    agent.stop(deserts=True)
    host.close()
    held = {number for number in memory if Path(f"/proc/self/fd/{number}").is_char_device()}
    for number in held:
        os.close(number)
    assert len(memory - held) == 1, "the socket, to which nothing can be written"
