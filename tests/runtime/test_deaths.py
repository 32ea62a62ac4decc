"""Deaths of real processes, detected by life futex and by pidfd."""

import errno
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from taskd.runtime.agent.deaths import DeathWatch, ProcessEnd, ending_status
from taskd.runtime.box.blackbox import Box
from taskd.runtime.system.pidfd import ProcessHandle
from tests.launch import Launcher
from tests.runtime.local import LIMIT_S, PROGRAMS, ROOT, readable

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def watch() -> Iterator[DeathWatch]:
    made = DeathWatch()
    yield made
    made.close()


@pytest.fixture
def box(run_dir: Path) -> Iterator[Box]:
    made = Box.create(run_dir / "box")
    yield made
    made.close()


@pytest.fixture
def begin(launcher: Launcher) -> Start:
    """Return a function that starts `dies.py` and waits until it has claimed its box."""

    def start(box: Box | None, status: str = "wait") -> "subprocess.Popen[bytes]":
        process = launcher.start(
            ["python", PROGRAMS / "dies.py", box.path if box else "-", status], env={"PYTHONPATH": str(ROOT)}
        )
        end_s = time.monotonic() + LIMIT_S
        while "ready" not in launcher.output(process):
            assert time.monotonic() < end_s
            time.sleep(0.01)
        return process

    return start


def until_gone(watch: DeathWatch) -> list[ProcessEnd]:
    found: list[ProcessEnd] = []
    while not (found and found[-1].gone):
        assert readable(watch.fileno()), found
        found += watch.events()
    return found


def test_of_a_box_that_was_cut_the_pidfd_tells_alone(
    watch: DeathWatch, box: Box, begin: Start, caplog: pytest.LogCaptureFixture
) -> None:
    process = begin(box)
    os.truncate(box.path, 0)
    watch.watch(process.pid, box)
    waiting = watch._threads[0]
    waiting.join(LIMIT_S)
    assert not waiting.is_alive(), "it does not ask again and again"
    process.kill()
    assert until_gone(watch) == [ProcessEnd(process.pid, gone=True)]
    assert [f"process {process.pid}: black box" in text and "was cut short" in text for text in caplog.messages] == [
        True
    ]


def test_the_futex_tells_first_and_the_pidfd_after_it(watch: DeathWatch, run_dir: Path, begin: Start) -> None:
    """At least once in five: the thread that waits for the futex may have to wait for a core."""
    told = []
    for number in range(5):
        box = Box.create(run_dir / f"box-{number}")
        process = begin(box, "large")
        watch.watch(process.pid, box)
        process.kill()
        told.append([ending.gone for ending in until_gone(watch)])
        box.close()
        if told[-1] == [False, True]:
            break
    assert told[-1] == [False, True], told
    assert ending_status(process.pid) == -signal.SIGKILL, "known before it is reaped"
    process.wait()
    assert ending_status(process.pid) is None


def test_a_kill_is_seen_within_50_ms(watch: DeathWatch, begin: Start) -> None:
    """The fastest of five counts, since the machine may be busy. Polling would take half its period at best."""
    seen_s = []
    for _ in range(5):
        process = begin(None)
        watch.watch(process.pid, None)
        killed_s = time.monotonic()
        process.kill()
        assert readable(watch.fileno())
        seen_s.append(time.monotonic() - killed_s)
        assert watch.events() == [ProcessEnd(process.pid, gone=True)]
    assert min(seen_s) < 0.05


def test_without_a_box_the_pidfd_tells(watch: DeathWatch, begin: Start) -> None:
    process = begin(None, "wait")
    watch.watch(process.pid, None)
    process.terminate()
    assert until_gone(watch) == [ProcessEnd(process.pid, gone=True)]
    assert ending_status(process.pid) == -signal.SIGTERM


@pytest.mark.parametrize("reason", [errno.EPERM, errno.ENOSYS, errno.EMFILE], ids=errno.errorcode.get)
def test_without_a_pidfd_each_is_looked_at(
    watch: DeathWatch, begin: Start, monkeypatch: pytest.MonkeyPatch, reason: int
) -> None:
    """A seccomp profile, an older kernel, or too many open files: no death is missed, and none is invented."""

    def refuse(_pid: int) -> int:
        raise OSError(reason, os.strerror(reason))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    first, second = begin(None), begin(None, "0")
    watch.watch(first.pid, None)
    watch.watch(second.pid, None)
    assert until_gone(watch) == [ProcessEnd(second.pid, gone=True)]
    assert not readable(watch.fileno(), 0.2)
    assert second.poll() == 0, "it was not reaped"
    first.kill()
    assert until_gone(watch) == [ProcessEnd(first.pid, gone=True)]


def no_thread(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_at_the_limit_of_threads_the_pidfd_tells(
    watch: DeathWatch, box: Box, begin: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    process = begin(box)
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    watch.watch(process.pid, box)
    process.kill()
    assert until_gone(watch) == [ProcessEnd(process.pid, gone=True)]
    assert f"no thread taskd-life-{process.pid} (can't start new thread); allow more processes" in caplog.text


def test_at_the_limit_of_threads_and_without_a_pidfd_the_agent_looks(
    watch: DeathWatch, begin: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread watches as soon as one can be started."""
    monkeypatch.setattr(os, "pidfd_open", refuse_pidfd)
    first, second = begin(None), begin(None)
    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", no_thread)
        watch.watch(first.pid, None)
        assert watch.events() == []
        first.kill()
        os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)
        assert watch.events() == [ProcessEnd(first.pid, gone=True)]
    watch.watch(second.pid, None)
    second.kill()
    assert until_gone(watch) == [ProcessEnd(second.pid, gone=True)]


@pytest.mark.parametrize("pidfd", [True, False], ids=["by pidfd", "by looks"])
def test_a_process_that_is_no_child(begin: Start, monkeypatch: pytest.MonkeyPatch, pidfd: bool) -> None:
    """It is seen running, is killed, and is seen ended before its parent has reaped it."""
    if not pidfd:
        monkeypatch.setattr(os, "pidfd_open", refuse_pidfd)
    shell = "sleep 1000 & echo $!; wait"
    parent = subprocess.Popen(["bash", "-c", shell], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert parent.stdout is not None
    handle = ProcessHandle(int(parent.stdout.readline()))
    assert handle.runs()
    os.kill(parent.pid, signal.SIGSTOP)
    handle.kill(signal.SIGKILL)
    end_s = time.monotonic() + LIMIT_S
    while handle.runs():
        assert time.monotonic() < end_s
    handle.close()
    assert not handle.runs()
    os.killpg(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()


def refuse_pidfd(_pid: int) -> int:
    raise PermissionError


@pytest.mark.parametrize(("status", "known"), [("13", 13), ("0", None)])
def test_exit_codes(watch: DeathWatch, begin: Start, status: str, known: int | None) -> None:
    """A failing status is known at once; 0 also means that the status is unknown."""
    process = begin(None, status)
    watch.watch(process.pid, None)
    assert until_gone(watch) == [ProcessEnd(process.pid, gone=True)]
    assert ending_status(process.pid) == known
    assert process.wait() == int(status)


def test_one_that_has_been_reaped_is_told_at_once(watch: DeathWatch, begin: Start) -> None:
    process = begin(None, "0")
    process.wait()
    watch.watch(process.pid, None)
    assert select.select([watch], [], [], 5)[0]
    assert watch.events() == [ProcessEnd(process.pid, gone=True)]
    assert watch.events() == []


def test_a_living_process_is_let_go(box: Box, begin: Start) -> None:
    """`close` ends the waits; the process continues to live."""
    watch = DeathWatch()
    process = begin(box)
    watch.watch(process.pid, box)
    watch.close()
    os.kill(process.pid, 0)


def test_a_box_that_is_closed_while_it_is_waited_on(watch: DeathWatch, box: Box, begin: Start) -> None:
    """The agent discards the box of a process whose futex it still waits on."""
    process = begin(None)
    watch.watch(process.pid, box)  # no process claims it
    box.close()
    process.kill()
    assert until_gone(watch) == [ProcessEnd(process.pid, gone=True)]
