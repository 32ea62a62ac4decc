"""Ranks of a resilient script are killed. The others keep their processes, and the weights are as without a fault."""

import json
import os
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from taskd.runtime.box.blackbox import Box, BoxPhase
from taskd.runtime.records.snapshot import take_snapshot
from tests.e2e.conftest import STEPS, MakeJob
from tests.e2e.job import Job, lives
from tests.e2e.plan import point

pytestmark = pytest.mark.slow
Same = Callable[[Job], None]
PROGRESS = 2 * 64
"""Offset of step, phase and five more numbers in a box (`csrc/region.h`)."""


def test_warm_ranks_take_over(make_job: MakeJob, same: Same) -> None:
    """One rank, rank 0, and two at once are killed. No `--max_restarts` is given or needed.

    The processes of a dead rank's data loader are dead after the recovery, those of the others live.
    """
    points = [
        point("one", 1, 4, "forward"),
        point("zero", 0, 6, "begin"),
        point("two", 1, 8, "forward"),
        point("three", 2, 8, "begin"),
        point("last", 0, 10, "begin"),
    ]
    kills = [(4, ("one",), (0, 2)), (6, ("zero",), (1, 2)), (8, ("two", "three"), (0,))]
    for step, _, others in kills:
        points += [point(f"rank {rank} in step {step}", rank, step, "begin") for rank in others]
    job = make_job(3).start("train.py", {"steps": STEPS, "points": points, "loaders": True})
    for number, (step, names, others) in enumerate(kills, start=1):
        job.warm()
        job.passed(*(f"rank {rank} in step {step}" for rank in others))
        before = job.pids
        victims = set(job.kill(*names))
        record = job.recovered(number)
        assert set(record["kept"].values()) == set(before.values()) - victims
        assert set(record["replaced"]) == {str(rank) for rank, pid in before.items() if pid in victims}
        for pid in before.values():
            assert loaders_live(job, pid) == {pid not in victims}
        assert all(record["warm"].values()), "a standby took over"
        assert not record["restart"]
        assert record["target_step"] == step - 1
    job.held("last")
    job.release("last")
    assert job.end() == 0
    same(job)
    kept = {path.name: take_snapshot(path) for path in (job.run_dir / "default" / "boxes").iterdir()}
    assert {f"rank-{rank}-incarnation-{n}.box" for rank, n in ((1, 0), (0, 0), (1, 1), (2, 0))} == kept.keys()
    assert all(box.how.startswith("without a word: SIGKILL") for box in kept.values())


def loaders_live(job: Job, pid: int) -> set[bool]:
    """Return the states of a rank's data loader processes: whether they live."""
    return {lives(worker) for worker in json.loads((job.folder / f"loaders-{pid}").read_text())}


def test_kills_during_a_recovery(make_job: MakeJob, same: Same) -> None:
    """A newcomer dies in its set-up, and a donor while it gives its state. Each is part of the same recovery."""
    points = [
        point("first", 1, 4, "begin"),
        point("setting up", 1, "newcomer"),
        point("second", 2, 6, "begin"),
        point("giving", 0, 5, "giving"),
    ]
    plan = {"steps": STEPS, "points": points, "backup_every": 0}  # rank 0 gives its state to no copy
    job = make_job(3).start("train.py", plan)
    job.kill("first")
    job.kill("setting up")
    record = job.recovered(1)
    assert (record["kept"].keys(), record["replaced"].keys()) == ({"0", "2"}, {"1"})
    before = job.pids
    job.kill("second")
    job.kill("giving")
    record = job.recovered(2)
    assert record["kept"] == {"1": before[1]}
    assert record["replaced"].keys() == {"0", "2"}
    assert record["attempts"] == 2
    assert job.end() == 0
    same(job)


def test_first_and_last_steps(make_job: MakeJob, same: Same) -> None:
    """Ranks die before anything was committed, around a commit near the end, and after the last collective."""
    points = [
        point("first", 1, 1, "forward"),
        point("inside 0", 0, 1, "begin"),
        point("inside 2", 2, 1, "begin"),
        point("stepped", 0, STEPS - 1, "stepped"),
        point("committed", 2, STEPS - 1, "committed"),
        point("end", 1, "end"),
    ]
    job = make_job(3).start("train.py", {"steps": STEPS, "points": points})
    job.passed("inside 0", "inside 2")
    for number, names in enumerate([("first",), ("stepped", "committed"), ("end",)], start=1):
        victims = set(job.kill(*names))
        record = job.recovered(number)
        assert len(record["kept"]) == 3 - len(victims), names
        assert victims.isdisjoint(record["kept"].values())
        assert record["target_step"] == [0, STEPS - 1, STEPS][number - 1]
    assert job.end() == 0
    assert "not known to this rank" not in job.output, "random numbers of step 0 were put down too"
    same(job)


@pytest.mark.thorough
def test_boxes_that_somebody_cuts(make_job: MakeJob, same: Same) -> None:
    """No rank and no torchrun dies of it, and a later kill is recovered as usual."""
    points = [point("cut", 1, 4, "begin"), point("killed", 0, 6, "forward"), point("last", 0, 8, "begin")]
    job = make_job(2).start("train.py", {"steps": STEPS, "points": points})
    job.held("cut")
    job.warm()
    before = job.pids
    (folder,) = Path("/dev/shm").glob(f"taskd-{job.process.pid}-*")
    boxes = [*folder.glob("box-*")]
    assert len(boxes) == 2
    for number, box in enumerate(boxes):
        os.truncate(box, number * 4096)  # one is empty, the other keeps the page with its step
    job.release("cut")
    (victim,) = job.kill("killed")
    assert victim == before[0], "all live on"
    record = job.recovered(1)
    assert (set(record["kept"].values()), set(record["replaced"])) == ({before[1]}, {"0"})
    job.held("last")
    job.release("last")
    assert job.end() == 0
    same(job)
    assert job.output.count("was cut short") == 1


@pytest.mark.thorough
def test_a_box_with_numbers_that_cannot_be(make_job: MakeJob, same: Same) -> None:
    """An impossibly large step in the box of a rank costs neither the agent nor the next recovery."""
    points = [point("spoilt", 1, 4, "begin"), point("killed", 0, 6, "forward"), point("last", 0, 8, "begin")]
    job = make_job(2).start("train.py", {"steps": STEPS, "points": points})
    job.held("spoilt")
    job.warm()
    (folder,) = Path("/dev/shm").glob(f"taskd-{job.process.pid}-*")
    with (folder / "box-1-0").open("r+b", buffering=0) as box:
        box.seek(PROGRESS)
        box.write(struct.pack("=6q", 1 << 54 << 8 | BoxPhase.TRAINING, *[2**63 - 1] * 5))
    with closing(Box.open(folder / "box-0-0")) as other:
        beats = other.read().native_count
        job.wait(lambda: other.read().native_count > beats + 5, "heartbeats of the agent, which are as frequent")
    job.release("spoilt")
    job.kill("killed")
    assert job.recovered(1)["replaced"].keys() == {"0"}
    job.held("last")
    job.release("last")
    assert job.end() == 0
    same(job)
    assert "has failed" not in job.output
