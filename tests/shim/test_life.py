"""Detection of a worker's end: at once when killed, with its status when it exits; and never a child's."""

import os
import signal
import statistics
import threading
import time

import pytest

from taskd.errors import ShimError
from taskd.runtime.box.blackbox import BoxCommand, BoxPhase, Life
from tests.shim.armed import PROGRAMS, armed, plain, until

WAIT = "import signal\nsignal.pause()\n"


def held(box):
    return box.read().life is Life.HELD


def seconds_to_see_a_kill(box, worker):
    seen = []
    watcher = threading.Thread(target=lambda: seen.append((box.await_death(20), time.monotonic())))
    watcher.start()
    until(lambda: box._users, "the watcher waits")
    killed = time.monotonic()
    worker.kill()
    watcher.join()
    worker.wait()
    assert seen[0][0]
    return seen[0][1] - killed


@pytest.mark.parametrize("megabytes", [0, 200])
def test_kill_9_is_seen_within_50_ms_whatever_the_size(megabytes, make_box, launcher):
    touch = f"memory = bytearray(b'x') * ({megabytes} << 20)\n"
    touch += "from taskd.runtime.box.recorder import Recorder\nRecorder().step(1)\n"
    delays = []
    for _ in range(5):
        box = make_box()
        worker = launcher.start(["python", "-c", touch + WAIT], env=armed(box.path))
        until(lambda box=box: box.read().step == 1 and held(box), "the worker is up")
        delays.append(seconds_to_see_a_kill(box, worker))
    assert statistics.median(delays) < 0.05, delays


def test_all_who_wait_are_woken(box, launcher):
    worker = launcher.start(["python", "-c", WAIT], env=armed(box.path))
    until(lambda: held(box), "the worker is up")
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(box.await_death(20))) for _ in range(4)]
    for thread in threads:
        thread.start()
    until(lambda: box._users == 4, "all wait")
    worker.kill()
    for thread in threads:
        thread.join()
    worker.wait()
    assert answers == [True] * 4
    assert box.read().exit_status is None
    with pytest.raises(ShimError, match="its owner is dead"):
        box.command(BoxCommand.PING)


def test_a_wait_begun_before_the_claim_sees_the_death(box, launcher):
    answers = []
    watcher = threading.Thread(target=lambda: answers.append(box.await_death(20)))
    watcher.start()
    until(lambda: box._users, "the watcher waits")
    worker = launcher.start(["python", "-c", WAIT], env=armed(box.path))
    until(lambda: held(box), "the worker is up")
    assert answers == []
    worker.kill()
    watcher.join()
    worker.wait()
    assert answers == [True]


@pytest.mark.parametrize(
    ("ending", "status"),
    [("pass", 0), ("raise SystemExit(3)", 3), ("import sys; sys.exit('why')", 1), ("import os; os._exit(5)", None)],
)
def test_a_normal_exit_is_recorded_with_its_status(ending, status, box, launcher):
    worker = launcher.start(["python", "-c", ending], env=armed(box.path))
    worker.wait()
    assert box.await_death(5)
    said = box.read()
    assert said.exit_status == status
    assert bool(said.end_ns) == (status is not None)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT])
def test_a_signal_ends_the_process_as_ever(number, box, launcher):
    worker = launcher.start(["python", "-c", WAIT], env=armed(box.path))
    until(lambda: held(box), "the worker is up")
    worker.send_signal(number)
    assert box.await_death(10)
    assert worker.wait() == -number
    assert box.read().exit_status is None


def test_progress_and_beats_are_read(box, launcher):
    worker = launcher.start(["python", PROGRAMS / "progresses.py"], env=armed(box.path))
    until(lambda: box.read().gil_ns, "the program has run")
    said = box.read()
    assert (said.step, said.phase) == (42, BoxPhase.RESTORING)
    assert said.claimed_ns <= said.step_ns <= said.phase_ns <= said.gil_ns <= time.monotonic_ns()
    until(lambda: box.read().native_count > said.native_count + 2, "the native thread beats")
    assert box.command(BoxCommand.PING) == 0
    worker.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, worker.pid, os.WSTOPPED)
    with pytest.raises(ShimError, match="did not answer in time"):
        box.command(BoxCommand.PING, 0.05)
    assert held(box)


def test_a_worker_that_replaces_itself_claims_its_box_again(box, launcher):
    again = (
        f"import os, sys\nif len(sys.argv) < 2: os.execv(sys.executable, [sys.executable, '-c', {WAIT!r}, 'again'])\n"
    )
    worker = launcher.start(["python", "-c", again], env=armed(box.path, TASKD_PRELOAD_KEEP="on"))
    until(lambda: box.read().claims == 2 and held(box), "the second program has claimed it")
    assert box.read().owner_pid == worker.pid
    assert seconds_to_see_a_kill(box, worker) < 5


def test_attaching_needs_no_preload(box, launcher):
    worker = launcher.start(["python", PROGRAMS / "attaches.py", box.path], env=plain())
    until(lambda: box.read().step == 9, "the program has run")
    said = box.read()
    assert (said.rank, said.incarnation, said.claims, said.life) == (5, 2, 1, Life.HELD)
    assert seconds_to_see_a_kill(box, worker) < 5
