"""Link of a rank's process to its agent, against a real server, with a breaker that only records its calls."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from taskd.config.worker import WorkerConfig
from taskd.core.diagnosis.evidence import Standing
from taskd.runtime.agent.sockets import Peer
from taskd.runtime.worker.worker import AbandonedError, WorkerLink
from taskd.wire.accounts import Account, LockSeen
from taskd.wire.kinds import JobRank
from taskd.wire.messages import (
    Abandon,
    AccountRequest,
    Condition,
    FromLocal,
    Hello,
    Join,
    Modules,
    Pause,
    Release,
    Stage,
    WorkerReport,
    WorldPlan,
)
from tests.launch import Launcher
from tests.runtime.local import LIMIT_S, PROGRAMS, ROOT, Ear

CLEAN = Condition.CLEAN


class Notes:
    """Breaker whose calls a test can wait for."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.stack: Sequence[str] = ()
        self.leaving = threading.Event()
        self._changed = threading.Condition()

    def leave_wait(self) -> None:
        self._note("may it wait?")

    def break_collectives(self) -> None:
        self._note("break")

    def mend(self) -> None:
        self._note("mend")

    def leave_at_commit(self) -> None:
        self.leaving.set()

    def standing(self, stack: Sequence[str], usual: Standing) -> Standing:
        self.stack = stack
        return Standing.EVALUATION if usual is Standing.TRAINING else usual

    def _note(self, text: str) -> None:
        with self._changed:
            self.calls.append(text)
            self._changed.notify_all()

    def until(self, *calls: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.calls == list(calls), LIMIT_S), self.calls


class Pair:
    """A link, and the agent's end of it."""

    def __init__(self, ear: Ear, *, joins: bool = False) -> None:
        config = WorkerConfig(
            agent_socket=ear.server.path,
            agent_pid=os.getpid(),
            run_dir=ear.server.path.parent,
            rank=JobRank(1),
            incarnation=2,
            generation=3,
            joins=joins,
        )
        self.link = WorkerLink(config, lambda: ("numpy",))
        self.notes = Notes()
        self.ear = ear
        self.peer, hello = ear.until(lambda _peer, message: isinstance(message, Hello))
        assert hello == Hello(role="worker", pid=os.getpid(), rank=JobRank(1), incarnation=2, generation=3)

    def hear(self) -> FromLocal | None:
        return self.ear.until(lambda peer, _message: peer is self.peer)[1]

    def stage(self, stage: Stage, generation: int, step: int) -> WorkerReport:
        """Require that the agent's next message is this report."""
        report = self.hear()
        assert isinstance(report, WorkerReport)
        assert (report.stage, report.generation, report.step) == (stage, generation, step)
        return report

    def close(self) -> None:
        """Close the agent's end. The agent lives on, and so does this process."""
        self.ear.server.drop(self.peer)
        self.link._line.thread.join(LIMIT_S)


Make = Callable[..., Pair]


@pytest.fixture
def make(ear: Ear) -> Iterator[Make]:
    made: list[Pair] = []

    def connect(*, joins: bool = False) -> Pair:
        made.append(Pair(ear, joins=joins))
        made[-1].link.attach(made[-1].notes)
        return made[-1]

    yield connect
    for pair in made:
        pair.close()


def test_a_script_that_closes_all_descriptors_stays_linked(make: Make, tmp_path: Path) -> None:
    """Its own files then have the link's numbers. Nothing is written into them, and the link is restored."""
    pair = make()
    link = pair.link
    number = link._line._end.socket.fileno()
    with (tmp_path / "users").open("w+b") as file:
        os.dup2(file.fileno(), number)  # closes the link's descriptor
        try:
            link.enter(4, CLEAN)
            pair.peer, hello = pair.ear.until(lambda peer, message: isinstance(message, Hello))
            assert isinstance(hello, Hello)
            assert (hello.rank, hello.incarnation) == (1, 2)
            pair.stage(Stage.TRAINING, 3, 4)
            pair.peer.send(Pause(generation=4, reason="a test"))
            pair.notes.until("break")
        finally:
            os.close(number)
        assert file.read() == b""


def plan(generation: int) -> WorldPlan:
    return WorldPlan(
        generation=generation,
        world_size=2,
        store_host="127.0.0.1",
        store_port=1,
        target_step=7,
        adopt=(),
        transfers=(),
        timeout_s=5,
    )


def test_a_survivor_pauses_joins_and_is_released(make: Make) -> None:
    pair = make()
    link, peer = pair.link, pair.peer
    link.enter(6, CLEAN)
    pair.stage(Stage.TRAINING, 3, 6)
    link.committed(7)
    pair.stage(Stage.COMMITTED, 3, 7)
    link.committed(8)  # only the first commit of a world is reported
    peer.send(Pause(generation=4, reason="rank 0 is dead"))
    pair.notes.until("break")
    assert link.interrupted
    link.raised(8, CLEAN, "RuntimeError: connection reset")
    assert pair.stage(Stage.PAUSED, 4, 8).cause == "RuntimeError: connection reset"
    peer.send(Join(plan=plan(4)))
    assert link.await_order() == plan(4)
    pair.notes.until("break", "mend")
    link.joined(8, CLEAN)
    pair.stage(Stage.JOINED, 4, 8)
    link.restored(7)
    pair.stage(Stage.RESTORED, 4, 7)
    link.committed(8)
    pair.stage(Stage.COMMITTED, 4, 8)
    link.returned(8, CLEAN)
    pair.stage(Stage.FINISHED, 4, 8)
    peer.send(Release(generation=4))
    assert link.await_order() is None
    pair.stage(Stage.RELEASED, 4, 8)


def test_a_pause_at_the_end_of_the_step(make: Make) -> None:
    """The main thread is to ask at its next commit, and the collectives stay intact."""
    pair = make()
    pair.link.enter(6, CLEAN)
    assert not pair.link.committed(7)
    assert not pair.notes.leaving.is_set()
    pair.peer.send(Pause(generation=4, reason="node 1 is drained", at_commit=True))
    assert pair.notes.leaving.wait(LIMIT_S)
    assert pair.link.committed(8)
    assert pair.notes.calls == []


def test_a_newcomer_waits_for_its_world(make: Make) -> None:
    pair = make(joins=True)
    assert pair.link.joins
    pair.link.enter(0, Condition.EMPTY)
    report = pair.hear()
    assert isinstance(report, WorkerReport)
    assert (report.stage, report.generation, report.condition) == (Stage.PAUSED, 3, Condition.EMPTY)
    pair.peer.send(Join(plan=plan(3)))
    assert pair.link.await_order() == plan(3)
    pair.link.restored(7)
    assert not pair.link.joins


def test_a_pause_before_there_is_a_breaker(ear: Ear, make: Make) -> None:
    """No groups exist yet. A breaker that is attached later breaks at once."""
    pair = make()
    pair.link.enter(0, CLEAN)
    pair.stage(Stage.TRAINING, 3, 0)
    pair.peer.send(Pause(generation=4))
    pair.notes.until("break")
    late = Notes()
    pair.link.attach(late)
    late.until("break")
    pair.link.raised(0, CLEAN, "")
    pair.stage(Stage.PAUSED, 4, 0)


def test_nobody_recovers_it(make: Make) -> None:
    pair = make()
    pair.link.enter(5, CLEAN)
    pair.stage(Stage.TRAINING, 3, 5)
    pair.link.raised(5, CLEAN, "RuntimeError: broken")
    pair.stage(Stage.PAUSED, 3, 5)
    pair.peer.send(Abandon(reason="no manager answers"))
    with pytest.raises(AbandonedError, match="no manager answers"):
        pair.link.await_order()


@pytest.mark.timeout(20)
@pytest.mark.parametrize("first", ["waits", "is deserted"])
def test_an_agent_that_ends_keeps_nobody_waiting(make: Make, first: str) -> None:
    """Its torchrun lives on. A rank that has finished leaves the function, whether it waits already or comes later."""
    pair = make()
    pair.link.enter(5, CLEAN)
    pair.stage(Stage.TRAINING, 3, 5)
    if first == "waits":
        pair.link.returned(5, CLEAN)
        pair.stage(Stage.FINISHED, 3, 5)
    pair.close()
    if first == "is deserted":
        pair.link.returned(5, CLEAN)
    with pytest.raises(AbandonedError, match="the agent of this node has ended"):
        pair.link.await_order()


def test_an_order_of_a_world_that_has_failed_is_forgotten(make: Make) -> None:
    """A plan is sent, and a newer pause crosses it: the main thread must not join the older world."""
    pair = make()
    pair.link.enter(5, CLEAN)
    pair.stage(Stage.TRAINING, 3, 5)
    pair.peer.send(Pause(generation=4))
    pair.notes.until("break")
    pair.link.raised(5, CLEAN, "")
    pair.stage(Stage.PAUSED, 4, 5)
    pair.peer.send(Join(plan=plan(4)))
    pair.notes.until("break", "mend")
    pair.peer.send(Pause(generation=5))
    pair.notes.until("break", "mend", "break")
    pair.link.raised(5, CLEAN, "RebuildError: not formed")
    pair.stage(Stage.PAUSED, 5, 5)
    pair.peer.send(Join(plan=plan(4)))
    pair.peer.send(Join(plan=plan(5)))
    assert pair.link.await_order() == plan(5)


def test_modules_are_told_when_asked_for(make: Make) -> None:
    pair = make()
    pair.peer.send(Modules(names=()))
    assert pair.hear() == Modules(names=("numpy",))


def test_what_it_is_about(make: Make) -> None:
    """By its own table; the breaker, which knows torch, may know better."""
    pair = make()
    for number, standing in enumerate(("starting", "evaluation", "paused")):
        if standing == "evaluation":
            pair.link.enter(6, CLEAN)
            pair.stage(Stage.TRAINING, 3, 6)
        elif standing == "paused":
            pair.link.raised(6, CLEAN, "")
            pair.stage(Stage.PAUSED, 3, 6)
        pair.peer.send(AccountRequest(number=number))
        account = pair.hear()
        assert isinstance(account, Account)
        assert (account.number, account.standing) == (number, standing)
        assert account.threads[0].name == "MainThread"
        assert any(line.endswith("in test_what_it_is_about") for line in pair.notes.stack)


def test_what_lock_it_waits_for(make: Make) -> None:
    """Its main thread reports the lock, and during its wait it learns whether it is to leave."""
    pair = make()
    seen = LockSeen(path="/cache/ext/lock", owner="process 7 holds it", pid=7)
    for number, lock in enumerate((seen, None)):
        pair.link.waits_for(lock)
        pair.peer.send(AccountRequest(number=number))
        account = pair.hear()
        assert isinstance(account, Account)
        assert account.lock == lock
    pair.notes.until("may it wait?")


def test_a_message_that_is_none_is_refused(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    pair = make()
    pair.peer.link.send(b"\xc1")
    pair.peer.send(Modules(names=()))
    assert pair.hear() == Modules(names=("numpy",)), "it still listens"
    assert "refused a message of the agent" in caplog.text


def linked(launcher: Launcher, ear: Ear, agent_pid: int, wait: Path) -> tuple["subprocess.Popen[bytes]", Peer]:
    os.mkfifo(wait)
    process = launcher.start(
        [sys.executable, PROGRAMS / "linked.py", ear.server.path, str(agent_pid), wait], env={"PYTHONPATH": str(ROOT)}
    )
    peer, _ = ear.until(lambda _peer, message: isinstance(message, Hello))
    return process, peer


def test_it_ends_with_its_agent(launcher: Launcher, ear: Ear, run_dir: Path) -> None:
    agent = subprocess.Popen([sys.executable, "-c", ""])
    agent.wait()
    process, peer = linked(launcher, ear, agent.pid, run_dir / "wait")
    ear.server.drop(peer)
    assert process.wait(LIMIT_S) == -signal.SIGKILL


def test_it_outlives_a_socket_that_a_living_agent_closes(launcher: Launcher, ear: Ear, run_dir: Path) -> None:
    process, peer = linked(launcher, ear, os.getpid(), run_dir / "wait")
    ear.server.drop(peer)
    with (run_dir / "wait").open("wb") as go:
        go.write(b"1")
    assert process.wait(LIMIT_S) == 7
