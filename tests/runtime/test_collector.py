"""Evidence of real processes: the collector reports any fate of theirs, and it never fails."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from taskd.core.diagnosis.conditions import condition_of_end, condition_of_hang
from taskd.core.diagnosis.endings import cause, ending_of
from taskd.core.diagnosis.evidence import Evidence, NonFinite, RunState, Standing
from taskd.core.diagnosis.findings import Kind
from taskd.runtime.agent.collector import FRESH_S, EvidenceCollector
from taskd.runtime.box.blackbox import Box
from taskd.runtime.system import processes
from taskd.wire.accounts import Account, ThreadStack
from taskd.wire.kinds import JobRank, NodeRank
from taskd.wire.messages import SawNonFinite
from tests.launch import Launcher
from tests.runtime.watched import LIMIT_S, Start, until

R0, R3, R5, R9 = JobRank(0), JobRank(3), JobRank(5), JobRank(9)

UNANSWERED_S = 1.2


def test_one_that_trains(start: Start) -> None:
    rank = start("while True: sum(range(1000))")
    rank.until(lambda known: known.clocks is not None and known.clocks.gil_s is not None)
    end_s = time.monotonic() + 0.5
    while time.monotonic() < end_s:
        time.sleep(0.05)
    known = rank.take()
    assert known.process is not None
    assert (known.node, known.position.step, known.position.standing) == (1, 41, Standing.TRAINING)
    assert (known.process.exiting, known.end.life_lost, known.end.ending, known.end.error) == (False, False, None, None)
    rank.until(lambda known: known.process is not None and 0.1 < (known.process.busy or 0.0) < 1.5)
    assert known.position.step_s is not None
    assert 0.4 < known.position.step_s < LIMIT_S
    assert (known.gone, condition_of_end(known)) == (False, None)


def test_what_it_says_itself_holds_for_a_while(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = start("signal.pause()")
    threads = (ThreadStack(name="MainThread", stack=("a.py:3 in f", "a.py:9 in <module>")),)
    rank.collector.hear(R3, Account(number=1, standing="evaluation", threads=threads))
    rank.collector.hear(R3, SawNonFinite(step=40, what="loss", value="nan"))
    rank.collector.hear(R3, SawNonFinite(step=41, what="loss", value="inf"))
    rank.collector.hear(R9, SawNonFinite(step=1, what="loss", value="nan"))
    known = rank.take()
    assert (known.position.standing, known.position.standing_s) == (Standing.EVALUATION, None)
    assert known.frames.stack == ("a.py:3 in f", "a.py:9 in <module>")
    assert [thread.name for thread in known.frames.threads] == ["MainThread"]
    assert known.non_finite == NonFinite(41, "loss", "inf"), "the newest: the process tells the first of each streak"
    later = time.monotonic() + FRESH_S + 0.1
    monkeypatch.setattr("taskd.runtime.agent.collector.monotonic", lambda: later)
    known = rank.take()
    assert (known.position.standing, known.frames.stack, known.frames.threads) == (Standing.TRAINING, (), ())
    rank.collector.begin(R3, rank.pid, 1)
    assert rank.take().non_finite is None, "another process"


def test_an_account_that_nobody_understands(start: Start) -> None:
    rank = start("signal.pause()")
    rank.collector.hear(R3, Account(number=1, standing="dreaming", threads=()))
    assert rank.take().position.standing is Standing.TRAINING


def test_collectives(start: Start) -> None:
    rank = start(
        "enter(TORCH_ALLREDUCE, 8, 2, 0, 5); enter(1, 0, 3, 0, -1); r.phase(BoxPhase.PAUSED); signal.pause()",
        "call_collectives()",
    )
    known = rank.until(lambda known: known.position.standing is Standing.PAUSED)
    opened = [call for call in known.calls.collectives if call.open]
    assert [(call.comm, call.bytes, call.peer, call.step) for call in opened] == [(8, 2, 5, 42), (7, 1, -1, None)]
    assert known.calls.collectives[0] is opened[0], "the newest in front"
    assert sum(call.comm == 8 for call in known.calls.collectives) == 16
    assert all(call.entered_s is not None and 0 <= call.entered_s < LIMIT_S for call in known.calls.collectives)
    few = rank.collector.take(R3, rank.pid, rank.box, node=NodeRank(1), events=4)
    assert len(few.calls.collectives) == 5
    assert [call.bytes for call in few.calls.collectives if call.open] == [2, 1], "open ones always"


FROM_OUTSIDE = {
    signal.SIGKILL: "signal 9 (SIGKILL)",
    signal.SIGTERM: f"signal 15 (SIGTERM), sent by {{name}}, pid {os.getpid()}, uid {os.getuid()}",
}


@pytest.mark.parametrize("number", FROM_OUTSIDE)
def test_killed(start: Start, number: signal.Signals) -> None:
    rank = start("signal.pause()")
    rank.process.send_signal(number)
    known = rank.end(-number)
    assert known.gone
    assert known.end.life_lost
    assert known.process is not None
    assert known.process.state is RunState.ZOMBIE
    name = known.end.terminated_by.name if known.end.terminated_by is not None else ""
    assert bool(name) == (number == signal.SIGTERM)
    assert cause(known, -number) == FROM_OUTSIDE[number].format(name=name)
    row = condition_of_end(known)
    assert row is not None
    assert row.kind is Kind.KILLED
    assert not known.frames.stack


def test_killed_as_the_futex_tells_it(start: Start) -> None:
    """The kill is seen before the process is gone, and before its cause is known."""
    rank = start("signal.pause()", "ballast = mmap.mmap(-1, 256 << 20); ballast.write(bytes(256 << 20))")
    rank.process.kill()
    assert rank.box.await_death(LIMIT_S)
    known = rank.take()
    assert known.gone
    assert known.end.life_lost
    assert known.end.ending is None
    rank.until(lambda known: known.process is not None and known.process.exiting)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ("await_beats(); free.abort()", -6, "signal 6 (SIGABRT): abort() was called in thread python"),
        (
            "await_beats(); ctypes.string_at(0)",
            -11,
            "signal 11 (SIGSEGV): an invalid memory access at address 0x0 in thread python",
        ),
        ("os.kill(os.getpid(), 15)", -15, "signal 15 (SIGTERM), sent by itself"),
        ("os.kill(os.getpid(), 11)", -11, "signal 11 (SIGSEGV), sent by itself"),
        ("os._exit(3)", 3, "exit code 3"),
        ("sys.exit(0)", 0, "exit code 0"),
    ],
)
def test_how_it_has_ended(start: Start, body: str, status: int, words: str) -> None:
    rank = start(body)
    known = rank.end(status)
    assert rank.process.wait() == status
    text = cause(known, status)
    assert text.startswith(words)
    assert ("; backtrace libc" in text) == ("thread" in words), text
    assert condition_of_end(known) is not None


def test_an_exception(start: Start) -> None:
    handler = "sys.excepthook = lambda kind, error, trace: r.last_words(error)"
    rank = start("def f():\n    {}['key']\nf()", handler)
    known = rank.end(1)
    assert known.end.error is not None
    assert (known.end.error.kind, known.end.error.message, known.end.error.main) == ("KeyError", "'key'", True)
    assert cause(known, 1) == f"exit code 1 at {known.end.error.where} (KeyError: 'key')"
    assert known.end.error.where.endswith("in f")


def test_a_cause_begins_as_torchrun_has_it() -> None:
    for status, text in ((0, "exit code 0"), (3, "exit code 3"), (137, "exit code 137"), (-99, "signal 99")):
        assert cause(Evidence(), status) == text
    for number in signal.Signals:
        if number < signal.SIGRTMIN:
            assert cause(Evidence(), -number).startswith(f"signal {number} ({number.name})")


def test_stopped(start: Start) -> None:
    rank = start("os.kill(os.getpid(), signal.SIGSTOP)")
    known = rank.state(RunState.STOPPED)
    assert condition_of_hang(known).kind is Kind.STOPPED
    rank.process.send_signal(signal.SIGCONT)
    rank.process.wait(LIMIT_S)


def test_uninterruptible(start: Start) -> None:
    """The parent of a vfork waits in this state for the exec of its child."""
    child = "ctypes.CDLL(None).vfork() or time.sleep(60)"
    rank = start(f"threading.Timer(30, os._exit, (0,)).start()\n{child}")
    known = rank.state(RunState.UNINTERRUPTIBLE)
    assert condition_of_hang(known).kind is not Kind.UNINTERRUPTIBLE, "it did not stand a moment ago"
    collector = EvidenceCollector()
    for _ in range(2):
        known = collector.take(R3, rank.pid, rank.box, node=NodeRank(0))
        assert condition_of_hang(known).kind is Kind.UNINTERRUPTIBLE, "looked at briefly: it may well last"
    end_s = time.monotonic() + UNANSWERED_S
    while time.monotonic() < end_s:
        known = rank.take()
        time.sleep(0.1)
    assert known.process is not None
    assert known.process.state_s is not None
    assert known.process.state_s > 1.0


def test_one_that_was_looked_at_long_ago_may_stand_since_then(launcher: Launcher) -> None:
    process = launcher.start(["sh", "-c", "sleep 1.5 & wait; sleep 60"])
    collector = EvidenceCollector()
    collector.begin(R0, process.pid, 0)
    end_s = time.monotonic() + 2.5
    while time.monotonic() < end_s:
        time.sleep(0.1)
    for _ in range(2):
        known = collector.take(R0, process.pid, None, node=NodeRank(0))
        assert known.process is not None
        assert known.process.state_s is None


def test_one_that_moves_does_not_stand(start: Start) -> None:
    rank = start("while True: time.sleep(0.005)")
    rank.take()
    looked_s = time.monotonic()
    time.sleep(0.1)
    known = rank.take()
    assert known.process is not None
    assert known.process.state_s is not None
    assert known.process.state_s < time.monotonic() - looked_s


STUCK = {
    "GIL held": ("held.sleep(60)", Kind.GIL_HELD),
    "deadlock": ("lock = threading.Lock(); lock.acquire(); lock.acquire()", Kind.DEADLOCK),
    "native": ("free.sleep(60)", Kind.BLOCKED),
    "loop": ("while True: pass", Kind.LOOP),
}


def is_silent(known: Evidence) -> bool:
    asked = known.clocks is not None and known.clocks.main_s is not None
    return asked and known.position.step_s is not None and known.position.step_s > UNANSWERED_S + 0.5


@pytest.mark.parametrize("name", STUCK)
def test_stuck(start: Start, name: str) -> None:
    body, kind = STUCK[name]
    rank = start(body)
    known = rank.until(is_silent)
    assert condition_of_hang(known).kind is kind, known
    if kind is Kind.LOOP:
        rank.until(lambda known: known.process is not None and (known.process.busy or 0.0) > 0.1)


def test_zombie_and_gone_and_closed(start: Start) -> None:
    rank = start("sys.exit(5)")
    os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOWAIT)
    known = rank.take()
    assert known.process is not None
    assert known.process.state is RunState.ZOMBIE
    assert known.gone
    rank.process.wait()
    known = rank.take(5)
    assert known.process is not None
    assert known.process.state is None
    assert known.position.step == 41
    rank.box.close()
    known = rank.take(5)
    assert (known.position.step, known.clocks, known.calls.collectives) == (None, None, ())
    assert condition_of_end(known) is not None


@pytest.mark.parametrize("pid", [1, 2, 0, -1, 4_194_303, 1 << 40], ids=lambda pid: f"pid {pid}")
def test_foreign_and_absent_processes(pid: int) -> None:
    """Nothing is known of its end and of its box, and nothing fails."""
    collector = EvidenceCollector()
    collector.begin(R0, pid, 0)
    collector.look(R0)
    known = collector.take(R0, pid, None, node=None)
    assert known.process is not None
    assert (known.process.state is not None) == Path(f"/proc/{pid}").exists()
    assert known.process.orphans == ()
    assert (known.position.step, known.clocks, known.end.fatal, known.position.standing) == (None, None, None, None)
    ended = collector.take(R0, pid, None, node=None, ending=ending_of(-9))
    assert cause(ended, -9) == "signal 9 (SIGKILL)"


def test_a_rank_that_was_never_begun_and_a_box_that_nobody_has(box: Box) -> None:
    known = EvidenceCollector().take(R5, os.getpid(), box, node=NodeRank(0))
    assert known.process is not None
    assert known.process.pid == os.getpid()
    assert (known.position.step, known.end.life_lost, known.position.standing) == (None, None, None)


def test_files_that_are_cut_or_cannot_be_read(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another kernel, or a process that ends meanwhile, may give such files."""
    rank = start("signal.pause()")
    for text in (
        None,
        "",
        "7 (a) S",
        "7 (a) S 1 x 1 1",
        "\n",
        ":::",
        "memory",
        "4:memory\n::\n0::/nowhere",
        "oom_kill x",
    ):
        for module in ("system.processes", "system.cgroups", "agent.disks"):
            monkeypatch.setattr(f"taskd.runtime.{module}.read", lambda _path, text=text: text)
        for ending in (None, ending_of(-9)):
            known = rank.collector.take(R3, rank.pid, rank.box, node=NodeRank(0), ending=ending)
            assert known.position.step == 41
    monkeypatch.undo()
    assert rank.take().process is not None


def test_children_and_those_that_are_left(start: Start, launcher: Launcher) -> None:
    """One is in the rank's session. The other is in a session of its own and was seen as a child earlier."""
    rank = start("signal.pause()", "have_children()")
    three = [RunState.SLEEPING] * 3
    known = rank.until(
        lambda known: known.process is not None and [child.state for child in known.process.children] == three
    )
    assert known.process is not None
    assert known.process.orphans == ()
    pids = {child.pid for child in known.process.children}
    rank.process.kill()
    known = rank.end(-9)
    assert known.process is not None
    assert known.process.children == ()
    assert {child.pid for child in known.process.orphans} == pids
    rank.process.wait()
    successor = launcher.start(["sleep", "60"])
    rank.collector.begin(R3, successor.pid, 1)

    def left() -> set[int]:
        process = rank.collector.take(R3, successor.pid, None, node=NodeRank(0)).process
        assert process is not None
        assert process.children == ()
        return {child.pid for child in process.orphans}

    assert left() == pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not left(), "they have ended")


def test_those_that_nobody_had_seen(start: Start) -> None:
    """A process in the rank's session belongs to the rank, whether it was seen before or not."""
    rank = start("signal.pause()", "have_child()")
    rank.process.kill()
    known = rank.end(-9)
    assert known.process is not None
    (orphan,) = known.process.orphans
    os.kill(orphan.pid, signal.SIGKILL)
    until(lambda: (known := processes.stat(orphan.pid)) is None or not known.alive, "it has ended")
    known = rank.end(-9)
    assert known.process is not None
    assert known.process.orphans == (orphan,), "it has left it all the same"


def test_it_costs_little(start: Start) -> None:
    """The process has some threads and children, and a ring full of collectives."""
    rank = start("signal.pause()", "have_much()")
    for status in (None, -9):
        costs, floors = [], []
        for _ in range(50):
            costs.append(_cost_s(rank.take, status))
            floors.append(_cost_s(_read_threads, rank.pid))
        assert sorted(costs)[12] < 2 * sorted(floors)[12], (costs, floors)


def _cost_s(act: Callable[..., object], *arguments: object) -> float:
    before_s = time.thread_time()
    act(*arguments)
    return time.thread_time() - before_s


def _read_threads(pid: int) -> None:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        (thread / "stat").read_text()
        (thread / "status").read_text()


def test_a_sender_that_has_ended_has_no_name(start: Start) -> None:
    rank = start("signal.pause()")
    sender = subprocess.Popen(["bash", "-c", f"kill -TERM {rank.pid}"])
    assert sender.wait() == 0
    known = rank.end(-signal.SIGTERM)
    assert known.end.terminated_by is not None
    assert (known.end.terminated_by.pid, known.end.terminated_by.name) == (sender.pid, "")
