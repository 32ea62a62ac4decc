"""Processes that make way while the kernel takes them down, and processes that do not."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from taskd.runtime.agent.teardown import NICENESS, make_way
from tests.runtime.local import PROGRAMS

PARTED = [str(PROGRAMS / "parted.py")]
IDLE = ["-c", "import time; print('up', flush=True); time.sleep(60)"]


@pytest.fixture
def start(leak_mark: str) -> Iterator["type[Started]"]:
    yield Started
    for process in Started.all:
        process.kill()
        process.communicate()
    Started.all.clear()


class Started:
    """Process that has printed its first line. It is reaped when the test ends."""

    all: "list[subprocess.Popen[bytes]]" = []  # noqa: RUF012 - the fixture empties it

    def __init__(self, program: list[str]) -> None:
        process = subprocess.Popen([sys.executable, *program], stdout=subprocess.PIPE, start_new_session=True)
        self.all.append(process)
        self.pid = process.pid
        assert process.stdout is not None
        assert process.stdout.readline()

    @property
    def niceness(self) -> int:
        return os.getpriority(os.PRIO_PROCESS, self.pid)


def test_a_dying_process_makes_way(start: type[Started]) -> None:
    process = start(IDLE)
    os.kill(process.pid, signal.SIGKILL)
    assert make_way(process.pid)
    assert process.niceness == NICENESS


@pytest.mark.parametrize("program", [IDLE, PARTED], ids=["lives", "its main thread has ended"])
def test_one_that_lives_is_left_alone(start: type[Started], program: list[str]) -> None:
    process = start(program)
    before = process.niceness
    assert not make_way(process.pid)
    assert process.niceness == before


def test_one_that_is_gone_is_nobodys_trouble(start: type[Started]) -> None:
    process = start(IDLE)
    Started.all[-1].kill()
    Started.all[-1].wait()
    assert not make_way(process.pid)
