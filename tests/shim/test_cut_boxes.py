"""Boxes that another process of the same user cuts: under their reader, and under the process that writes them."""

import os
import signal

import pytest

from taskd.runtime.box.blackbox import Life
from tests.shim.armed import PROGRAMS, armed, plain, until

LENGTHS = [0, 1, 4096, 60_000]
WAYS = 10
"""Number of ways to read a box. Each reports that an empty box was cut."""
WORKER = ("python", PROGRAMS / "cut_worker.py")


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


def test_the_agents_side_of_it(box, launcher, tmp_path):
    worker = launcher.start([*WORKER, box.path, tmp_path / "go", "time.sleep(60)"], env=plain())
    until(lambda: box.read().step == 1, "it trains")
    agent = launcher.run(["python", PROGRAMS / "cut_agent.py", box.path, tmp_path / "go"], env=plain())
    assert agent == (0, "True\n" * 7)
    until(lambda: "went on" in launcher.output(worker), "it goes on")
    worker.kill()


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
