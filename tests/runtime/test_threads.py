"""Signs that a process can still make progress: its threads' activity between two inspections, and their waits."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from taskd.core.diagnosis.evidence import Stillness
from taskd.runtime.agent.threads import compare, look
from tests.launch import Launcher
from tests.runtime.local import PROGRAMS, ROOT
from tests.runtime.watched import until

WINDOW_S = 0.3
DEADLOCK = "begin(second.acquire); first.acquire()"


@pytest.fixture
def still(launcher: Launcher, tmp_path: Path) -> Callable[[str], Stillness]:
    """Return a function that runs a program and compares two inspections of its process."""

    def play(program: str) -> Stillness:
        ready = tmp_path / str(len(list(tmp_path.iterdir())))
        process = launcher.start(["python", PROGRAMS / "still.py", ready, program], env={"PYTHONPATH": str(ROOT)})
        until(ready.exists, "the program runs")
        found: list[Stillness] = []

        def settled() -> bool:
            """Return whether Python has come to rest: two successive answers differ in numbers only."""
            before = look(process.pid)
            time.sleep(WINDOW_S)
            known = compare(process.pid, before) if before is not None else None
            found.extend([known] if known is not None else [])
            return len(found) > 1 and found[-1].main == found[-2].main

        until(settled, "it stays where it is")
        return found[-1]

    return play


def test_who_waits_for_locks_of_his_own_without_end_has_neither_run_nor_can_he_wake(
    still: Callable[[str], Stillness],
) -> None:
    known = still(DEADLOCK)
    assert (known.ran, known.waits, known.main) == ((), (), "a lock")
    assert known.io_bytes == 0
    assert known.window_s >= WINDOW_S


@pytest.mark.parametrize(
    ("program", "what"),
    [
        ("time.sleep(1e6)", "a sleep"),
        ("first.acquire(timeout=1e6)", "a lock, with a time limit"),
        ("subprocess.run(['sleep', '1000'])", "a child process"),
        ("a, b = socket.socketpair(); a.recv(1)", "a socket"),
        ("a, b = os.pipe(); os.read(a, 1)", "a read"),
        ("signal.pause()", "a signal"),
    ],
)
@pytest.mark.parametrize("main", [True, False], ids=["main thread", "another thread"])
def test_who_is_woken_from_elsewhere_may_be_at_work(
    still: Callable[[str], Stillness], program: str, what: str, main: bool
) -> None:
    elsewhere = f"def other():\n    {program}\nbegin(other); first.acquire()"
    known = still(program if main else elsewhere)
    assert any(text.endswith(f"waits for {what}") for text in known.waits)
    assert (known.main == what) == main


def test_who_has_run_is_at_work_whatever_the_thread(still: Callable[[str], Stillness]) -> None:
    known = still("begin(spin, 'spinner'); first.acquire()")
    assert known.ran[0].startswith("spinner ran (")
    assert known.share > 0.1
    assert still("spin()").ran[0].startswith("its main thread ran (")


def test_threads_of_taskd_do_not_count(still: Callable[[str], Stillness]) -> None:
    known = still("begin(spin, 'taskd-control'); first.acquire()")
    assert (known.ran, known.waits) == ((), ())


def test_threads_of_taskd_that_come_and_go_do_not_count(still: Callable[[str], Stillness]) -> None:
    """They are the same as in a rank: each starts the next one and ends."""
    known = still("come(); first.acquire()")
    assert (known.ran, known.waits, known.main) == ((), (), "a lock")


def test_a_thread_that_beats_counts_only_if_it_does_more_than_that(still: Callable[[str], Stillness]) -> None:
    assert still("begin(beat, 'gloo_tcp_loop'); first.acquire()").ran == ()
    assert still("begin(beat, 'loader'); first.acquire()").ran != ()
    assert still("begin(spin, 'gloo_tcp_loop'); first.acquire()").ran != ()


def test_who_handles_a_signal_may_be_waiting_for_it(still: Callable[[str], Stillness]) -> None:
    known = still("signal.signal(signal.SIGALRM, lambda *_: first.release()); signal.alarm(50); first.acquire()")
    assert known.waits == ("its main thread waits for a lock, or a signal",)


def test_what_was_written_is_seen(still: Callable[[str], Stillness]) -> None:
    known = still("while True: os.write(os.open('/dev/null', os.O_WRONLY), b'x' * 10000); time.sleep(0.05)")
    assert known.io_bytes is not None
    assert known.io_bytes >= 10000


def test_a_process_that_has_gone_tells_nothing() -> None:
    assert look(2**22 + 1) is None
