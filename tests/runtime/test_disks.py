"""File systems without space, and file systems that do not answer."""

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskd.core.diagnosis.conditions import condition_of_end
from taskd.core.diagnosis.findings import Kind
from taskd.runtime.agent import disks
from taskd.runtime.agent.disks import full_disk
from tests.runtime.watched import Start

SIZE_BYTES = 64 << 10


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a small file system."""
    place = tmp_path / "a disk"
    place.mkdir()
    options = f"size={SIZE_BYTES},nr_inodes=8"
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "taskd-test", place], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip(f"needs root and the right to mount: {made.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", place], check=True)


def full() -> str | None:
    return full_disk(os.getpid(), timeout_s=10)


@pytest.mark.root
def test_one_without_space(disk: Path) -> None:
    assert full() != str(disk)
    (disk / "file").write_bytes(bytes(SIZE_BYTES))
    assert full() == str(disk)
    (disk / "file").unlink()
    assert full() != str(disk)


@pytest.mark.root
def test_one_without_room_for_another_file(disk: Path) -> None:
    for number in range(7):
        (disk / str(number)).touch()
    assert full() == str(disk)


@pytest.mark.root
def test_it_is_looked_for_when_something_could_not_be_written(disk: Path, start: Start) -> None:
    (disk / "file").write_bytes(bytes(SIZE_BYTES))
    handler = "sys.excepthook = lambda kind, error, trace: r.last_words(error)"
    rank = start("raise RuntimeError('PytorchStreamWriter failed writing file data/0: file write failed')", handler)
    known = rank.end(1)
    assert known.blockers.full_disk == str(disk)
    row = condition_of_end(known)
    assert row is not None
    assert row.kind is Kind.DISK_FULL


@pytest.mark.root
def test_it_is_not_looked_for_otherwise(disk: Path, start: Start) -> None:
    (disk / "file").write_bytes(bytes(SIZE_BYTES))
    assert start("signal.pause()").take().blockers.full_disk is None


def test_a_file_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller does not wait for it and does not query it twice."""
    answer = threading.Event()
    asked: list[object] = []

    def silent(place: object) -> os.statvfs_result:
        asked.append(place)
        answer.wait()
        raise OSError

    monkeypatch.setattr(os, "statvfs", silent)
    try:
        for _ in range(3):
            before_s = time.monotonic()
            assert full_disk(os.getpid()) is None
            assert time.monotonic() - before_s < 1.0
        assert len(asked) == 1
    finally:
        answer.set()
        for thread in threading.enumerate():
            if thread.name == "taskd-disks":
                thread.join()
    before = len(asked)
    full()
    assert len(asked) > before, "it may be asked again"


def test_a_process_that_is_gone() -> None:
    full_disk(1 << 40)


def test_at_the_limit_of_threads_no_disk_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", no_thread)
        assert full_disk(os.getpid()) is None
    monkeypatch.setattr(disks, "_places", lambda _pid: iter(["/full"]))
    monkeypatch.setattr(disks, "_is_full", lambda _place: True)
    assert full_disk(os.getpid(), timeout_s=10) == "/full", "it may be asked again"
