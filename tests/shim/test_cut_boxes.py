"""Boxes that another process of the same user cuts: under their reader, and under the process that writes them."""

import os
import signal

import pytest

from taskd.runtime.box.blackbox import Life
from tests.shim.armed import PROGRAMS, armed, plain, until

LENGTHS = [0, 1, 4096, 60_000]
WAYS = 10
"""Of reading a box; of one that is empty each is told that it was cut."""
WORKER = """
import sys, time
from pathlib import Path
from taskd.runtime.box.recorder import BoxPhase, Recorder
r = Recorder()
r.attach(Path({box!r}), 3, 1)
r.phase(BoxPhase.TRAINING)
r.step(1)
while not Path({go!r}).exists():
    time.sleep(0.01)
r.step(2)
r.await_data(); r.got_data(5); r.gil_beat()
r.phase(BoxPhase.PAUSED)
ticket = r._core.taskd_enter(257, 7, 8, 0, -1)
r._core.taskd_leave(ticket)
r.last_words(ValueError("it goes on"))
assert r.break_collectives() == 0
r.mend()
time.sleep(0.6)  # three beats of the native thread
assert r.attached
print("went on", r.census().broken, flush=True)
{end}
"""


def test_a_reader_is_told_and_lives(box, launcher, tmp_path):
    path = tmp_path / "box"
    path.write_bytes(box.path.read_bytes())
    path.chmod(0o600)
    status, output = launcher.run(["python", PROGRAMS / "cut.py", path, *map(str, LENGTHS)], env=plain())
    assert status == 0, f"{signal.Signals(-status).name if status < 0 else status}: {output}"
    after, meanwhile = map(int, output.split())
    assert after >= 2 * WAYS
    assert meanwhile > 0


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("how", ["gate", "core"])
def test_a_worker_goes_on(how, length, box, launcher, tmp_path):
    go = tmp_path / "go"
    command = [*WORKER, box.path, go, "sys.exit(3)"]
    worker = launcher.start(command, env=armed(box.path) if how == "gate" else plain())
    until(lambda: box.read().step == 1, "it trains")
    os.truncate(box.path, length)
    go.touch()
    assert worker.wait(20) == 3, launcher.output(worker)
    assert launcher.output(worker) == "went on False\n"


AGENT = """
import os, sys
from pathlib import Path
from taskd.errors import ShimError
from taskd.runtime.box.blackbox import Box, BoxCommand
box = Box.open(Path(sys.argv[1]))
os.truncate(box.path, 0)
Path(sys.argv[2]).touch()
ways = (box.read, box.events, box.clocks, box.communicators, box.postmortem, box.await_death)
for way in (*ways, lambda: box.command(BoxCommand.PING)):
    try:
        print(way())
    except ShimError as error:
        print("was cut short (ENODATA); let nobody else write there" in str(error))
"""


def test_the_agents_side_of_it(box, launcher, tmp_path):
    worker = launcher.start([*WORKER, box.path, tmp_path / "go", "time.sleep(60)"], env=plain())
    until(lambda: box.read().step == 1, "it trains")
    agent = launcher.run(["python", PROGRAMS / "cut_agent.py", box.path, tmp_path / "go"], env=plain())
    assert agent == (0, "True\n" * 7)
    until(lambda: "went on" in launcher.output(worker), "it goes on")
    worker.kill()


POSITION = """
import os, sys
from pathlib import Path
from taskd.adaptors.training.position_file import PositionFile, PositionKind
from taskd.runtime.box.recorder import Recorder
Recorder().attach(Path(sys.argv[1]), 3, 1)
file = PositionFile(sys.argv[2])
os.truncate(sys.argv[2], int(sys.argv[3]))
for step in range(6):
    file.write(PositionKind.TENTATIVE, step, (bytes(9000),))
    file.write(PositionKind.COMMITTED, step, (bytes(9000),))
print(sorted(file.read()))
file.close()
"""


@pytest.mark.parametrize("length", [0, 100_000])
def test_a_position_file_too(length, box, launcher, tmp_path):
    command = ["python", PROGRAMS / "cut_position.py", box.path, tmp_path / "position", str(length)]
    assert launcher.run(command, env=plain()) == (0, "[3, 4, 5]\n")


def test_a_sigbus_of_the_programs_own_kills_as_ever(box, launcher, tmp_path):
    cut = tmp_path / "cut"
    cut.write_bytes(bytes(8192))
    (tmp_path / "go").touch()
    end = f"read_behind_the_end({str(cut)!r})"
    worker = launcher.start([*WORKER, box.path, tmp_path / "go", end], env=plain())
    assert worker.wait(20) == -signal.SIGBUS
    fault = box.postmortem().fault
    assert fault is not None
    assert (fault.signum, box.read().life) == (signal.SIGBUS, Life.LOST)
