"""A rank's group is killed, and the processes that remove its shared memory get the time to do so."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskd.adaptors.torchrun import cleaners
from taskd.adaptors.torchrun.cleaners import Cleaners
from taskd.runtime.system import segments
from taskd.runtime.system.segments import await_removal
from tests.leaks import set_subreaper
from tests.torchrun.nursery import is_running

LIMIT_S = 20.0
RANK = """
import os, signal, subprocess, sys
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
segment = SharedMemory(name=sys.argv[1], create=True, size=4096)
beside = subprocess.Popen(["sleep", "infinity"])
escaped = 0
if sys.argv[2:]:  # a daemon that holds the tracker's pipe: it never reads the end
    pipe = resource_tracker._resource_tracker._fd
    escaped = subprocess.Popen(["sleep", "infinity"], start_new_session=True, pass_fds=(pipe,)).pid
print(resource_tracker._resource_tracker._pid, beside.pid, escaped, flush=True)
signal.pause()
"""


class Rank:
    """A process that leads its group and has made a segment, with a child and a resource tracker."""

    def __init__(self, *more: str) -> None:
        self.segment = Path("/dev/shm") / f"taskd_test_{uuid.uuid4().hex}"
        command = [sys.executable, "-c", RANK, self.segment.name, *more]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
        assert self.process.stdout is not None
        self.tracker, self.beside, self.escaped = map(int, self.process.stdout.readline().split())
        self.pidfd = os.pidfd_open(self.tracker)

    def die(self) -> None:
        self.process.kill()
        os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)

    def tracker_ends(self, limit_s: float = LIMIT_S) -> bool:
        return bool(select.select([self.pidfd], [], [], limit_s)[0])

    def close(self) -> None:
        assert self.process.stdout is not None
        self.process.stdout.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(LIMIT_S)
        if self.escaped:
            os.kill(self.escaped, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitid(os.P_ALL, 0, os.WEXITED)
        os.close(self.pidfd)
        self.segment.unlink(missing_ok=True)


@pytest.fixture(params=["reaper", "no reaper"])
def reaps(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run with and without standbys: torchrun is the parent of its ranks' orphans, or is not."""
    set_subreaper(request.param == "reaper")
    yield
    set_subreaper(False)


@pytest.mark.usefixtures("reaps")
@pytest.mark.parametrize("state", ["alive", "dead"])
def test_the_tracker_outlives_the_group_and_removes_the_segment(state: str, capfd: pytest.CaptureFixture[str]) -> None:
    rank, kept = Rank(), Cleaners()
    if state == "dead":
        rank.die()
    assert rank.segment.exists()
    kept.kill_group(rank.process.pid)
    kept.kill_group(rank.process.pid)
    assert rank.process.wait(LIMIT_S) == -signal.SIGKILL
    assert rank.tracker_ends()
    assert not rank.segment.exists()
    assert "leaked shared_memory" in capfd.readouterr().err, "it has ended by itself"
    assert not kept.pids
    deadline = time.monotonic() + LIMIT_S
    while is_running(rank.beside):
        assert time.monotonic() < deadline
    rank.close()


@pytest.mark.usefixtures("reaps")
def test_a_tracker_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaners, "CLEANUP_S", 0.5)
    rank, kept = Rank("held"), Cleaners()
    kept.kill_group(rank.process.pid)
    assert list(kept.pids) == [rank.tracker]
    assert not rank.tracker_ends(0.3)
    time.sleep(0.3)
    kept.look()
    assert rank.tracker_ends()
    assert not kept.pids
    rank.close()


@pytest.mark.usefixtures("reaps")
def test_what_is_spared_while_torchrun_ends_its_ranks_is_left_alone() -> None:
    """It is not checked any more: it ends by itself, and holds no descriptor here."""
    rank, kept = Rank(), Cleaners()
    before = os.listdir("/proc/self/fd")
    kept.release()
    kept.kill_group(rank.process.pid)
    assert len(os.listdir("/proc/self/fd")) == len(before)
    assert rank.process.wait(LIMIT_S) == -signal.SIGKILL
    assert rank.tracker_ends()
    assert not rank.segment.exists(), "it had the time to remove it"
    assert not kept.pids
    rank.close()


def test_a_group_without_one_is_killed_whole() -> None:
    process = subprocess.Popen(["sh", "-c", "sleep infinity & sleep infinity"], start_new_session=True)
    kept = Cleaners()
    kept.kill_group(process.pid)
    assert process.wait(LIMIT_S) == -signal.SIGKILL
    assert not kept.pids


@pytest.mark.timed
def test_a_rank_waits_for_those_that_may_remove_a_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`tmp_path` takes the place of /dev/shm, where other jobs may have segments."""
    monkeypatch.setattr(segments, "_SEGMENTS", tmp_path)
    rank, segment = Rank("held"), tmp_path / "fixed"
    try:
        segment.touch()
        begun_s = time.monotonic()
        await_removal((rank.tracker,), 0.2)
        assert time.monotonic() - begun_s >= 0.2, "the segment is there, and so is the tracker"
        segment.unlink()
        begun_s = time.monotonic()
        await_removal((rank.tracker,), LIMIT_S)
        assert time.monotonic() - begun_s < LIMIT_S / 2, "no name is taken"
        segment.touch()
        os.kill(rank.tracker, signal.SIGKILL)
        await_removal((rank.tracker,), LIMIT_S)
        assert time.monotonic() - begun_s < LIMIT_S / 2, "nobody is left who may remove it"
    finally:
        rank.close()
