"""Break and mend of real gloo groups: no rank hangs, none gets a wrong value, a new group works."""

import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

import taskd
from taskd.runtime.box.blackbox import BoxCommand, BoxPhase
from tests.shim.armed import PROGRAMS, REPOSITORY, armed, plain, until
from tests.shim.sources import build_libs

dist = pytest.importorskip("torch.distributed")


CYCLES = int(os.environ.get("TASKD_BREAK_CYCLES", "20"))
"""Number of times that groups are broken and formed anew; 200 for a release."""

MOST_CYCLES_WITHOUT_WAKING = 200


class Store:
    """A store that can be closed while another object still holds it."""

    def __init__(self):
        self._server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.port = self._server.port
        self.set = self._server.set

    def close(self):
        del self._server, self.set


@pytest.fixture(scope="module", autouse=True)
def first_store():
    """Open the pipe that libuv keeps for good with the first store of a process."""
    Store().close()


@pytest.fixture
def store(leak_mark):
    server = Store()
    yield server
    server.close()


def start_ranks(how, store, make_box, launcher, package=REPOSITORY):
    boxes = [make_box() for _ in range(3)]
    for rank, box in enumerate(boxes):
        command = ["python", PROGRAMS / "reduce.py", how, str(rank), "3", box.path, str(store.port)]
        launcher.start(command, env=environment(how, box, rank) | {"PYTHONPATH": str(package)})
    until(lambda: all(box.read().step >= 2 for box in boxes), "all ranks train", timeout_s=40)
    return boxes


def environment(how, box, rank):
    return armed(box.path, RANK=str(rank)) if how == "gate" else plain()


def all_in(boxes, phase):
    return all(box.read().phase == phase for box in boxes)


def stop(boxes, store, number):
    store.set(f"survivors/{number}", "stop")
    for box in boxes:
        box.command(BoxCommand.BREAK)
    for box in boxes:
        assert box.await_death(20)
    assert [box.read().exit_status for box in boxes] == [0] * len(boxes)


@pytest.mark.parametrize("how", ["gate", "core", "fork"])
def test_survivors_of_a_stopped_peer_come_out_at_once_and_go_on(how, store, make_box, launcher):
    boxes = start_ranks(how, store, make_box, launcher)
    stopped, survivors = boxes[2], boxes[:2]
    os.kill(stopped.read().owner_pid, signal.SIGSTOP)
    # Both are stuck once neither has finished a reduction for as long as several would take.
    newest = [0, 0]
    while newest != (newest := [box.read().step for box in survivors]):
        time.sleep(0.5)
    begun = time.monotonic()
    for box in survivors:
        assert box.command(BoxCommand.BREAK) > 0
    until(lambda: all_in(survivors, BoxPhase.PAUSED), "survivors are out of their collective")
    assert time.monotonic() - begun < 0.2
    store.set("survivors/1", "0 1")
    until(lambda: all(box.read().step > step + 1 for box, step in zip(survivors, newest, strict=True)), "they train on")
    stop(survivors, store, 2)
    os.kill(stopped.read().owner_pid, signal.SIGKILL)


def break_all(boxes, rng):
    """Break all at a random moment, in half of the cases with one rank stopped, and the others amid a transfer."""
    time.sleep(rng.random() * 0.06)
    rng.shuffle(order := list(boxes))
    stopped = order[-1].read().owner_pid if rng.random() < 0.5 else 0
    if stopped:
        os.kill(stopped, signal.SIGSTOP)
        time.sleep(0.05)
    for box in order[:-1]:
        box.command(BoxCommand.BREAK)
    if stopped:
        os.kill(stopped, signal.SIGCONT)
    order[-1].command(BoxCommand.BREAK)


def let_train(boxes, store, cycle):
    reached = [box.read().step for box in boxes]
    store.set(f"survivors/{cycle}", "0 1 2")
    until(
        lambda: all(box.read().step > step + 1 for box, step in zip(boxes, reached, strict=True)),
        f"cycle {cycle}: all train on",
    )


@pytest.mark.timeout(60 + 3 * CYCLES)
def test_breaks_at_random_moments_lose_and_spoil_nothing(store, make_box, launcher):
    """The tensors have 12 MB, and every element is checked. `TASKD_BREAK_CYCLES=200` is the long run."""
    boxes = start_ranks("core", store, make_box, launcher)
    rng = random.Random(11)
    for cycle in range(1, CYCLES + 1):
        break_all(boxes, rng)
        until(lambda: all_in(boxes, BoxPhase.PAUSED), f"cycle {cycle}: all are out of their collective")
        let_train(boxes, store, cycle)
    stop(boxes, store, CYCLES + 1)


@pytest.fixture
def without_waking(tmp_path):
    """Build a copy of the package whose core shuts sockets and does not wake the waiters."""
    shutil.copytree(Path(taskd.__file__).parent, tmp_path / "taskd")
    sources = tmp_path / "csrc"
    shutil.copytree(build_libs.CSRC, sources)
    waking = "        waiter->kicked++;\n        if (waiter->abort)\n            waiter->abort(waiter->buffer);\n"
    source = (sources / "gloo.c").read_text()
    assert source.count(waking) == 1
    (sources / "gloo.c").write_text(source.replace(waking, "        continue;\n"))
    core = tmp_path / build_libs.LIBS / build_libs.CORE
    files = [sources / name for name in build_libs.SOURCES[build_libs.CORE]]
    subprocess.run(["gcc", *build_libs.FLAGS, "-o", core, *files, *build_libs.EXTRA[build_libs.CORE]], check=True)
    return tmp_path


@pytest.mark.slow
def test_without_waking_the_waiters_somebody_hangs(without_waking, store, make_box, launcher):
    """This shows that the test above works: shut sockets are not enough in the middle of a transfer."""
    boxes = start_ranks("core", store, make_box, launcher, without_waking)
    rng = random.Random(11)
    for cycle in range(1, MOST_CYCLES_WITHOUT_WAKING + 1):
        break_all(boxes, rng)
        try:
            until(lambda: all_in(boxes, BoxPhase.PAUSED), "all are out", timeout_s=5)
        except AssertionError:
            print(f"somebody hung in cycle {cycle}")
            return
        let_train(boxes, store, cycle)
    pytest.fail(f"nobody hung in {MOST_CYCLES_WITHOUT_WAKING} cycles, expected one within about 25")


@pytest.mark.parametrize(("role", "outcome"), [("receive", "raised\n"), ("idle", "sockets: 0\n")])
def test_a_break_of_one_rank_ends_waits_and_connections_on_both_sides(role, outcome, store, make_box, launcher):
    boxes = [make_box(), make_box()]
    ranks = []
    for rank, its_role in enumerate((role, "idle")):
        command = ["python", PROGRAMS / "exchange.py", its_role, str(rank), boxes[rank].path, str(store.port)]
        ranks.append(launcher.start(command, env=plain()))
    until(lambda: all(box.read().step == 1 for box in boxes), "both are connected", timeout_s=40)
    boxes[0].command(BoxCommand.BREAK)
    assert [rank.wait(20) for rank in ranks] == [0, 0]
    assert [launcher.output(rank) for rank in ranks] == [outcome, "sockets: 0\n"]
