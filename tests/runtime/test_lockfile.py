"""Build locks whose owner was killed: taken over only where this death is proven. All processes are real."""

import fcntl
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch  # noqa: F401 - before its module below, as in a rank
from torch.utils import file_baton

from taskd.adaptors import batons
from taskd.adaptors.batons import watch_batons
from taskd.core.diagnosis.conditions import condition_of_hang
from taskd.core.diagnosis.evidence import LockFile
from taskd.core.diagnosis.findings import Kind
from taskd.core.diagnosis.locks import Hold
from taskd.errors import StaleLockError
from taskd.runtime.system import processes
from taskd.runtime.worker import lockfile
from taskd.wire.accounts import Account, LockSeen
from taskd.wire.kinds import JobRank
from tests.runtime.local import ROOT
from tests.runtime.watched import Start

LIMIT_S = 60.0
PROGRAM = Path(__file__).with_name("programs") / "builder.py"
CONTAINER = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")


class Builder:
    """Process that builds or waits, in a session of its own like a rank."""

    def __init__(self, lock: Path, *more: str, way: str = "watched", within: tuple[str, ...] = ()) -> None:
        self.process = subprocess.Popen(
            [*within, sys.executable, PROGRAM, lock, way, *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,  # select must see all data that has arrived
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )
        self.compiler = 0
        self.contained = bool(within)

    def says(self, word: str) -> "Builder":
        """Require that its next line begins with this word."""
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], LIMIT_S)[0], f"it is silent, and should say {word!r}"
        first, _, rest = self.process.stdout.readline().decode().rstrip("\n").partition(" ")
        assert first == word, (first, self.process.communicate()[1] if self.process.poll() is not None else "")
        self.compiler = int(rest or 0)
        return self

    def is_silent(self) -> bool:
        """Return whether it prints nothing for as long as torch needs to check the lock several times."""
        assert self.process.stdout is not None
        return not select.select([self.process.stdout], [], [], 1.0)[0]

    def killed(self) -> "Builder":
        """Kill it by SIGKILL and reap it."""
        self.process.kill()
        self.process.wait(LIMIT_S)
        return self

    def ends(self) -> str:
        """Send its line and wait for its end. Return its stderr."""
        return self.process.communicate(b"\n", LIMIT_S)[1].decode()

    def close(self) -> None:
        if self.contained:  # the first process of the container: `unshare` waits for it
            for first in processes.children(self.process.pid):
                os.kill(first, signal.SIGKILL)
            self.process.wait(LIMIT_S)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.communicate()
        with suppress(ChildProcessError):
            if self.compiler:
                os.waitpid(self.compiler, 0)  # if this process is the reaper of orphans


Build = Callable[..., Builder]


@pytest.fixture
def build(leak_mark: str) -> Iterator[Build]:
    """Yield a function that starts builders, and end them all."""
    made: list[Builder] = []

    def start(lock: Path, *more: str, way: str = "watched", within: tuple[str, ...] = ()) -> Builder:
        made.append(Builder(lock, *more, way=way, within=within))
        return made[-1].says("begins")

    yield start
    for one in made:
        one.close()


@pytest.fixture
def lock(leak_mark: str) -> Iterator[Path]:
    """Yield the path of a build's lock, in a folder of this kernel alone."""
    folder = Path(tempfile.mkdtemp(prefix="taskd-", dir="/dev/shm"))
    yield folder / "lock"
    shutil.rmtree(folder)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Watch torch's batons in this process, too."""
    for name in ("try_acquire", "wait", "release"):
        monkeypatch.setattr(file_baton.FileBaton, name, getattr(file_baton.FileBaton, name))
    watch_batons(file_baton)


def container() -> tuple[str, ...]:
    tried = subprocess.run([*CONTAINER, "true"], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if tried.returncode:
        pytest.skip(f"no namespace of processes: {tried.stderr.strip()}")
    return CONTAINER


def test_the_lock_of_a_killed_build_is_taken_over_and_that_is_said(build: Build, lock: Path) -> None:
    owner = build(lock).says("builds").killed()
    second = build(lock).says("builds")
    third = build(lock).says("waits")
    assert third.is_silent(), "the name of the lock never disappears: nothing is built yet"
    text = second.ends()
    assert f"the stale lock {lock} was removed: process {owner.process.pid} held it and has ended" in text
    third.says("came")
    assert not lock.exists()


def test_who_waited_when_the_owner_was_killed_does_not_take_it_for_built(build: Build, lock: Path) -> None:
    owner = build(lock).says("builds")
    waiting = build(lock).says("waits")
    owner.killed()
    assert waiting.is_silent()
    second = build(lock).says("builds")
    assert waiting.is_silent()
    second.ends()
    waiting.says("came")


def test_two_that_come_at_once_are_not_both_owners(build: Build, lock: Path) -> None:
    build(lock).says("builds").killed()
    descriptor, holding = lockfile.take(str(lock))
    assert descriptor is not None
    assert holding.hold is Hold.STALE
    build(lock).says("waits")
    assert lockfile.take(str(lock)) == (None, lockfile.look(str(lock)))
    assert lockfile.look(str(lock)).hold is Hold.HELD
    os.close(descriptor)


@pytest.mark.parametrize("number", [0, signal.SIGSTOP])
def test_a_living_owner_keeps_its_lock(build: Build, lock: Path, number: int) -> None:
    owner = build(lock).says("builds")
    os.kill(owner.process.pid, number)
    assert build(lock).says("waits").is_silent()
    holding = lockfile.look(str(lock))
    assert (holding.hold, holding.pid) == (Hold.HELD, owner.process.pid)
    assert lock.exists()


def test_a_living_owner_in_another_container_keeps_its_lock(build: Build, lock: Path) -> None:
    """No process here has the owner's pid, and /proc shows none that has the file open."""
    within = container()
    owner = build(lock, within=within).says("builds")
    assert lockfile.look(str(lock)).hold is Hold.HELD
    assert build(lock).says("waits").is_silent()
    assert build(lock, within=within).says("waits").is_silent()
    owner.close()
    holding = lockfile.look(str(lock))
    assert holding.hold is Hold.STALE
    assert "of another container on this node held it and has ended" in holding.words
    assert "was removed" in build(lock).says("builds").ends()


def test_of_another_container_no_lock_is_proof_on_a_file_server(
    build: Build, lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(lock, within=container()).says("builds").close()
    assert lockfile.look(str(lock)).hold is Hold.STALE
    monkeypatch.setattr("taskd.runtime.worker.lockfile._LOCAL", frozenset())
    assert lockfile.look(str(lock)).hold is Hold.UNKNOWN
    assert lockfile.take(str(lock))[0] is None


def test_what_was_made_without_taskd_is_named_and_stays(build: Build, lock: Path) -> None:
    owner = build(lock, way="stock").says("builds")
    holding = lockfile.look(str(lock))
    assert holding.hold is Hold.UNKNOWN
    assert holding.words.endswith(f"process {owner.process.pid} (python builder.py) has it open")
    owner.killed()
    holding = lockfile.look(str(lock))
    assert holding.hold is Hold.UNKNOWN
    assert holding.words.endswith("no process seen here has it open")
    build(lock).says("waits")
    assert lock.exists()


def test_compilers_of_a_killed_owner_are_waited_for(build: Build, lock: Path) -> None:
    """They still write into the folder."""
    owner = build(lock, "sleep", "600").says("builds").killed()
    holding = lockfile.look(str(lock))
    assert holding.hold is Hold.LEFT
    assert holding.words.endswith("has ended, and of what it has started 1 still runs")
    second = build(lock)
    assert second.is_silent()
    os.kill(owner.compiler, signal.SIGKILL)
    second.says("builds")
    assert second.ends().count(f"the lock {lock} is waited for: {holding.words}\n") == 1


def test_what_it_has_forked_may_hold_the_lock(build: Build, lock: Path) -> None:
    owner = build(lock, "fork").says("builds").killed()
    holding = lockfile.look(str(lock))
    assert holding.hold is Hold.HELD
    assert holding.words == f"process {owner.process.pid} has ended, and a process that it has forked holds it"
    build(lock).says("waits")


def test_while_it_is_released_nobody_takes_it(lock: Path, watched: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch closes the file before it removes it. In between, it resembles a dead owner's lock in another container."""
    baton = file_baton.FileBaton(str(lock))
    assert baton.try_acquire()
    remove, seen = os.remove, []

    def slowly(path: str) -> None:
        with lock.open() as file, suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            seen.append("free")
        remove(path)

    monkeypatch.setattr(os, "remove", slowly)
    baton.release()
    assert seen == []
    assert not lock.exists()


def test_a_rank_that_waits_for_nobody_ends_and_leaves_the_lock_to_a_new_one(
    build: Build, lock: Path, watched: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch assumes that a build it has waited for is complete, and would not build it."""
    monkeypatch.setattr(batons, "GRACE_S", 0.0)
    owner = build(lock).says("builds").killed()
    text = f"found the lock {lock}, of which process {owner.process.pid} held it and has ended"
    with pytest.raises(StaleLockError, match=re.escape(text)):
        file_baton.FileBaton(str(lock)).wait()
    assert not file_baton.FileBaton(str(lock)).try_acquire()
    build(lock).says("builds")


def test_a_lock_that_nobody_signed_is_told_of(
    build: Build, lock: Path, watched: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    build(lock, way="stock").says("builds").killed()
    monkeypatch.setattr(batons, "TELL_S", 0.0)
    monkeypatch.setattr(time, "sleep", lambda _s: lock.unlink())
    file_baton.FileBaton(str(lock)).wait()
    (record,) = caplog.records
    assert f"waits for the lock {lock}: it is not signed, so made without taskd, and no process seen" in record.message
    assert record.message.endswith("; if nobody builds there, remove it")


def leave(lock: Path) -> None:
    """Let a process sign the lock and end, without torch."""
    opening = "os.open(sys.argv[1], os.O_CREAT | os.O_EXCL)"
    program = f"import os, sys; from taskd.runtime.worker.lockfile import sign; sign({opening})"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", program, lock], env=env, timeout=LIMIT_S, check=True, start_new_session=True)


def other(text: str, name: str, value: object) -> str:
    """Return the signature with one value replaced."""
    return re.sub(rf"\b{name}=\S+", f"{name}={value}", text)


STRANGE = {
    "empty": lambda _: "",
    "garbage": lambda _: "\x00\xff" * 4000,
    "cut short": lambda text: text[:-1],
    "of a copy": lambda text: other(text, "file", "1:2"),
    "of another boot": lambda text: other(text, "boot", "0" * 8 + "-0000-0000-0000-" + "0" * 12),
    "huge numbers": lambda text: other(text, "pid", "9" * 400),
    "a host that a terminal obeys": lambda text: other(other(text, "file", "1:2"), "host", "\x1b[2J"),
    "of a process that lives": lambda text: other(
        other(text, "pid", os.getpid()),
        "start",
        processes.stat(os.getpid()).start_ticks,  # type: ignore[union-attr]
    ),
}


@pytest.mark.parametrize("name", STRANGE)
def test_strange_signatures(lock: Path, name: str) -> None:
    leave(lock)
    assert lockfile.look(str(lock)).hold is Hold.STALE
    lock.write_text(STRANGE[name](lock.read_text()))
    holding = lockfile.look(str(lock))
    assert holding.hold is (Hold.HELD if "lives" in name else Hold.UNKNOWN)
    assert holding.words.isprintable()
    assert lockfile.take(str(lock))[0] is None


@pytest.mark.parametrize("kind", ["link", "second name", "pipe", "folder", "another user's"])
def test_strange_files(lock: Path, kind: str) -> None:
    leave(lock)
    beside = lock.with_name("beside")
    if kind == "another user's":
        if os.geteuid():
            pytest.skip("only root gives files away")
        os.chown(lock, 12345, 12345)
    elif kind == "second name":
        os.link(lock, beside)
    else:
        lock.rename(beside)
        {"link": lambda: lock.symlink_to(beside), "pipe": lambda: os.mkfifo(lock), "folder": lock.mkdir}[kind]()
    assert lockfile.look(str(lock)).hold is Hold.UNKNOWN
    assert lockfile.take(str(lock))[0] is None
    assert lock.exists()


def test_where_proc_is_of_other_processes_nothing_is_proven(build: Build, lock: Path) -> None:
    build(lock).says("builds").killed()
    within = tuple(word for word in container() if word != "--mount-proc")
    build(lock, within=within).says("waits")
    lock.unlink()
    build(lock, within=within).says("builds")
    assert lock.read_text() == ""


def test_what_a_rank_says_of_it_is_evidence(start: Start) -> None:
    rank = start("signal.pause()")
    lock = LockSeen(path="/cache/ext/lock", owner="process 7 held it and has ended", stale=True)
    rank.collector.hear(JobRank(3), Account(number=1, standing="training", threads=(), lock=lock))
    known = rank.take()
    assert known.blockers.lock_file == LockFile("/cache/ext/lock", "process 7 held it and has ended", 0, stale=True)
    assert condition_of_hang(known).kind is Kind.LOCK_FILE
    rank.collector.hear(JobRank(3), Account(number=2, standing="training", threads=()))
    assert rank.take().blockers.lock_file is None


def test_no_lock() -> None:
    assert lockfile.look("/nowhere/lock").hold is Hold.GONE
    assert lockfile.take("/nowhere/lock")[0] is None
