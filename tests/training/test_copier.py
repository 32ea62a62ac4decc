"""The thread that makes copies: its use of a store that anybody can write to, and its end."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from taskd.adaptors.groups.world import GroupWorld
from taskd.adaptors.training.copies import copier as copier_of
from taskd.adaptors.training.copies import exchange
from taskd.adaptors.training.copies.backups import Backups
from taskd.adaptors.training.copies.context import CopyHooks, CopyWorld
from taskd.adaptors.training.copies.copier import Copier
from taskd.adaptors.training.copies.copy_file import CopyHead
from taskd.adaptors.training.copies.folder import CopyFolder
from taskd.adaptors.training.copies.ring import Member, Neighbours
from taskd.adaptors.training.limits.refusals import Refusals
from taskd.adaptors.training.proof.ahead import AheadTrial
from taskd.adaptors.training.state import TrainState
from taskd.config.worker import WorkerConfig
from taskd.errors import CopyError
from taskd.runtime.agent.sockets import LocalServer
from taskd.runtime.links.identity import peers_key
from taskd.runtime.worker.pulse import NEVER
from taskd.runtime.worker.worker import WorkerLink
from taskd.wire.kinds import JobRank

R0, R1 = JobRank(0), JobRank(1)
ALONE = Neighbours(None, None)
KEY = peers_key(b"for these tests alone, 0123456789", "default")
LIMIT_S = 10.0
Start = Callable[..., Copier]


class Held:
    """Call that takes as long as the test wants."""

    def __init__(self) -> None:
        self.begun, self.over = threading.Event(), threading.Event()

    def __call__(self, *_: object) -> str:
        self.begun.set()
        assert self.over.wait(LIMIT_S)
        return "127.0.0.1"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[CopyFolder]:
    paths = [tmp_path / f"copy-{number}" for number in range(4)]
    folder = CopyFolder(paths, R1)
    yield folder
    folder.close()


@pytest.fixture
def start(folder: CopyFolder) -> Iterator[Start]:
    """Yield a function that starts the copier of rank 1. Its first step is 1, which has already passed."""
    made: list[Copier] = []

    def make(
        near: Neighbours = ALONE,
        begun: Callable[[], None] = lambda: None,
        due_at: Callable[[int], None] = lambda _step: None,
    ) -> Copier:
        now = [-1]
        world = CopyWorld("world", 1, lambda: KEY)
        hooks = CopyHooks(lambda: now[0], print, begun, due_at)
        made.append(Copier(Member(R1, False, 2, near), folder, 1, -1, world, hooks))
        made[-1].start()
        now[0] = 5
        made[-1].due(5, lambda _: True)
        return made[-1]

    yield make
    for one in made:
        assert one.stop()
        assert one._thread is not None
        one._thread.join(LIMIT_S)
        assert not one._thread.is_alive()


def decide(copier: Copier, said: str) -> None:
    """Write the first rank's decision for the copy of step 1."""
    copier._store.set("world/copies/1/1/after", said)


@pytest.mark.parametrize(
    "said",
    ["", "1", "one 2", "1 2 3", "1  2", "2 2", "-1 2", "1 1", "1 -5", f"1 {1 << 63}", "1 1_0", "1 ²", "9" * 9999],
)
def test_junk_in_the_place_of_the_next_step_is_one_line(
    start: Start, said: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copier_of, "_GRACE_S", 0.01)
    copier = start()
    decide(copier, said)
    assert copier._thread is not None
    copier._thread.join(LIMIT_S)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.exc_info is None
    assert record.getMessage() == (
        "rank 1: no more copies are made until the next recovery: the store does not name the step that is copied "
        "after step 1"
    )


@pytest.mark.timed
def test_a_resolver_that_is_silent_does_not_hold_its_end_up(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    resolver = Held()
    monkeypatch.setattr(exchange, "own_host", resolver)
    copier = start(Neighbours(R0, R0))
    assert resolver.begun.wait(LIMIT_S)
    begun_s = time.monotonic()
    assert copier.stop()
    assert time.monotonic() - begun_s < 2.0
    resolver.over.set()


def test_a_thread_that_ends_late_leaves_the_next_copiers_step_alone(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolver, due = Held(), list[int]()
    monkeypatch.setattr(exchange, "own_host", resolver)
    copier = start(Neighbours(R0, R0), due_at=due.append)
    assert resolver.begun.wait(LIMIT_S)
    assert copier.stop()
    assert due.pop() == NEVER
    due.append(7)  # from the next copier
    resolver.over.set()
    assert copier._thread is not None
    copier._thread.join(LIMIT_S)
    assert due[-1] == 7


@pytest.mark.timed
def test_a_thread_that_does_not_end_is_left_behind_and_makes_no_copy_whole(
    start: Start, folder: CopyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copier_of, "_STOP_S", 0.2)
    busy = Held()
    copier = start(begun=busy)
    decide(copier, "1 2")
    assert busy.begun.wait(LIMIT_S)
    file = folder.room(R1, 10, -1)
    begun_s = time.monotonic()
    assert not copier.stop()
    assert time.monotonic() - begun_s < 2.0
    with pytest.raises(CopyError, match="left behind"):
        copier._seal(file, CopyHead(R1, 1, 10, "d"))
    assert folder.whole() == ()
    busy.over.set()


def test_a_rank_whose_copier_does_not_end_makes_no_more_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two threads never write to the memory of one copy."""
    monkeypatch.setattr(copier_of, "_STOP_S", 0.2)
    server, busy, refused = LocalServer(tmp_path / "agent.sock"), Held(), list[str]()
    copies = tuple(tmp_path / f"copy-{number}" for number in range(2))
    for path in copies:
        path.touch(mode=0o600)  # as the agent does
    config = WorkerConfig(server.path, os.getpid(), tmp_path, 0, 0, R1, copies=copies)
    link = WorkerLink(config, lambda: ())
    monkeypatch.setattr(link, "tell_again", busy)
    model = torch.nn.Linear(2, 2)
    state = TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), backup_every=1)
    state._recovery.begin(R1)
    refusals = Refusals(lambda **said: refused.append(said["no_newcomer"]), tells=True)
    backups = Backups(state._recovery, link, refusals)
    backups.start(GroupWorld(), -1, first=False)
    end_s = time.monotonic() + LIMIT_S
    while not busy.begun.is_set():
        assert time.monotonic() < end_s
        state.commit()
        time.sleep(0.01)  # the thread's part of a round
    copier = backups._copier
    assert copier is not None
    backups.stop()
    assert backups.folder is None
    assert backups.held(paused=True).copies == ()
    assert len(refused) == 1
    assert "the thread that copies does not end" in refused[0]
    assert "at a fault all processes start anew" in caplog.text
    backups.start(GroupWorld(), -1, first=False)
    assert backups._copier is None
    busy.over.set()
    assert copier._thread is not None
    copier._thread.join(LIMIT_S)
    backups.close()
    server.close()
    link._line.thread.join(LIMIT_S)


def test_nothing_is_copied_while_the_place_in_the_data_is_unknown(tmp_path: Path) -> None:
    """A loader may be a batch ahead of the steps until the self-check has its verdict."""
    server = LocalServer(tmp_path / "agent.sock")
    copies = tuple(tmp_path / f"copy-{number}" for number in range(2))
    for path in copies:
        path.touch(mode=0o600)
    config = WorkerConfig(server.path, os.getpid(), tmp_path, 0, 0, R1, copies=copies)
    link = WorkerLink(config, lambda: ())
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader: Any = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4, 2)))
    state = TrainState(model=model, optimizer=optimizer, loader=loader, backup_every=1)
    state._recovery.begin(R1)
    backups = Backups(state._recovery, link, Refusals(lambda **_: None, tells=False))
    trial = AheadTrial(state._recovery.parts, suspected=False)
    next(iter(loader))
    backups.start(GroupWorld(), -1, first=False)
    copier = backups._copier
    assert copier is not None
    assert not backups._take(copier.snapshot)
    trial.end(exact=False)
    assert backups._take(copier.snapshot)
    backups.stop()
    backups.close()
    server.close()
    link._line.thread.join(LIMIT_S)


def test_memory_that_is_needed_for_something_else_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No setting requires these copies: none is made any more, and the job's report lists none."""
    monkeypatch.setattr(copier_of, "is_pressed", lambda held_bytes: held_bytes > 0)
    folder = CopyFolder([tmp_path / "copy-0", tmp_path / "copy-1"], R1, asked=False)
    folder.room(R1, 10, -1).seal(CopyHead(R1, 1, 10, "d"))
    assert len(folder.whole()) == 1
    hooks = CopyHooks(lambda: 5, print, print, print)
    copier = Copier(Member(R1, False, 2, ALONE), folder, 0, -1, CopyWorld("world", 1, lambda: KEY), hooks)
    copier._told = (2, True)
    copier._look_at_memory()
    assert len(folder.whole()) == 1, "this one is being written"
    copier._told = None
    copier._look_at_memory()
    assert folder.whole() == ()
    taken: list[object] = []

    def take(snapshot: object) -> bool:
        taken.append(snapshot)
        return True

    copier.next = 6
    copier.due(6, take)
    assert not taken


def test_an_error_of_a_state_dict_is_none_of_the_commit(start: Start) -> None:
    copier = start()

    def fails(_snapshot: object) -> bool:
        raise KeyError("gone")

    copier.next = 7
    copier.due(7, fails)
    assert copier._over == "the state cannot be put down: KeyError: 'gone'"
