"""The census finds each kind of leak, and nothing where nothing leaks. Each test removes its own leaks."""

import os
import signal
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest

from tests import leaks
from tests.e2e.job import ROOT, lives
from tests.launch import Launcher
from tests.runtime.watched import until

PROGRAMS = Path(__file__).with_name("programs")


@pytest.fixture
def short_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for leaks that were made on purpose: they do not go away by themselves."""
    monkeypatch.setattr(leaks, "TIMEOUT_S", 0.05)


def test_nothing_is_found_where_nothing_leaks(leak_mark: str) -> None:
    before = leaks.take(leak_mark)
    worker = threading.Thread(target=lambda: None)
    worker.start()
    subprocess.run(["true"], check=True)
    with open(os.devnull) as nothing:
        nothing.read()
    assert leaks.leaks(before, leak_mark) == []


def test_a_thread_is_found(leak_mark: str, short_timeout: None) -> None:
    before = leaks.take(leak_mark)
    release = threading.Event()
    worker = threading.Thread(target=release.wait, name="forgotten")
    worker.start()
    found = leaks.leaks(before, leak_mark)
    release.set()
    worker.join()
    assert found == ["thread 'forgotten'"]


def test_a_thread_that_is_about_to_end_is_waited_for(leak_mark: str) -> None:
    before = leaks.take(leak_mark)
    release = threading.Event()
    worker = threading.Thread(target=release.wait)
    worker.start()
    timer = threading.Timer(0.1, release.set)
    timer.start()
    assert leaks.leaks(before, leak_mark) == []


def test_a_descriptor_is_found_with_its_target(leak_mark: str) -> None:
    before = leaks.take(leak_mark)
    descriptor = os.open(os.devnull, os.O_RDONLY)
    found = leaks.leaks(before, leak_mark)
    os.close(descriptor)
    assert found == [f"descriptor {descriptor} -> /dev/null"]


def test_a_descriptor_that_only_garbage_holds_is_no_leak(leak_mark: str) -> None:
    class Holder:
        def __init__(self) -> None:
            self.file = os.fdopen(os.open(os.devnull, os.O_RDONLY))
            self.itself = self

        def __del__(self) -> None:
            self.file.close()

    before = leaks.take(leak_mark)
    Holder()
    assert leaks.leaks(before, leak_mark) == []


def test_a_child_is_found_and_killed(leak_mark: str) -> None:
    before = leaks.take(leak_mark)
    child = subprocess.Popen(["sleep", "60"], env={})  # without the mark: only its parent identifies it
    found = leaks.leaks(before, leak_mark)
    assert child.wait(10) == -signal.SIGKILL
    assert found == [f"process {child.pid}: sleep 60"]


def test_a_child_that_nobody_waited_for_is_found(leak_mark: str) -> None:
    before = leaks.take(leak_mark)
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    found = leaks.leaks(before, leak_mark)
    child.wait()
    assert found == [f"process {child.pid}: ended, but not waited for"]


def test_an_orphan_is_found_by_its_mark(leak_mark: str, short_timeout: None) -> None:
    before = leaks.take(leak_mark)
    with subprocess.Popen(
        [sys.executable, PROGRAMS / "orphan_maker.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as maker:
        assert maker.stdout is not None
        orphan = int(maker.stdout.readline())
        maker.wait(10)
        found = [line for line in leaks.leaks(before, leak_mark) if line.startswith("process")]
        assert maker.stdout.read() == ""  # the pipe's other end is closed: the orphan is dead
    assert len(found) == 1
    assert found[0].startswith(f"process {orphan}: ")


def test_a_process_left_a_subreaper_is_found_and_mended(leak_mark: str) -> None:
    before = leaks.take(leak_mark)
    leaks.set_subreaper(True)
    assert leaks.leaks(before, leak_mark) == ["this process is a subreaper"]
    assert not leaks.is_subreaper()


@pytest.mark.parametrize(("alone", "reported"), [(True, 1), (False, 0)])
def test_shared_memory_is_found_unless_it_may_be_anothers(
    leak_mark: str, launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: bool, reported: int
) -> None:
    beside = {os.getpid()}
    if not alone:
        started = tmp_path / "started"
        os.mkfifo(started)
        hold = f"import signal; open({str(started)!r}, 'w').write('now'); signal.pause()"
        beside.add(launcher.start(["python", "-c", hold, "pytest"]).pid)
        assert started.read_text() == "now"
    before = leaks.take(leak_mark)
    path = Path("/dev/shm") / f"taskd-{uuid.uuid4().hex}"
    path.touch()
    monkeypatch.setattr(leaks, "_pids", lambda: sorted(beside))  # other processes of this machine do not matter
    found = [line for line in leaks.leaks(before, leak_mark) if path.name in line]
    path.unlink()
    assert found == [f"shared memory {path}"] * reported


def test_the_launcher_ends_a_process_that_left_its_session(leak_mark: str, tmp_path: Path) -> None:
    launcher = Launcher(tmp_path, leak_mark)
    fifo = tmp_path / "alive"
    os.mkfifo(fifo)
    process = launcher.start(["python", PROGRAMS / "leaves_session.py", fifo])
    with fifo.open() as pipe:
        assert pipe.read(5) == "ready"
        assert process.wait(10) == 0
        launcher.end_all()
        assert pipe.read() == ""  # end of file: its only writer is dead


def test_the_launcher_leaves_a_group_alone_whose_number_is_no_longer_its_own(leak_mark: str, tmp_path: Path) -> None:
    launcher = Launcher(tmp_path, leak_mark)
    stranger = "subprocess.Popen(['sleep', '60'], env={})"  # without the mark, in the group of that number
    process = launcher.start(["python", "-c", f"import subprocess; print({stranger}.pid)"])
    assert process.wait(10) == 0
    child = int(launcher.output(process))
    try:
        launcher.end_all()
        assert lives(child)
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_program_that_plays_jobs_and_is_told_to_end_leaves_none(
    launcher: Launcher, tmp_path: Path, leak_mark: str, number: signal.Signals
) -> None:
    process = launcher.start(["python", PROGRAMS / "player.py", tmp_path, leak_mark], env={"PYTHONPATH": str(ROOT)})
    until((tmp_path / "job").exists, "its job runs")
    process.send_signal(number)
    assert process.wait(20) == 128 + number
    assert not leaks.marked(leak_mark)
