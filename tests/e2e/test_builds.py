"""A rank that is killed while it builds an extension. Its lock stays, and with stock torch all ranks wait for ever."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.e2e.conftest import MakeJob
from tests.e2e.job import ROOT, Job
from tests.e2e.plan import point
from tests.thorough import everyday

STEPS = 6
LATE = 30
"""A step at which the job's rhythm is known."""
BUILDER = ROOT / "tests" / "runtime" / "programs" / "builder.py"
_stock: list[str] = []


def weights(job: Job) -> list[str]:
    return [result["weights"] for result in job.results()]


@pytest.fixture
def stock(make_job: MakeJob) -> list[str]:
    """Return the weights of two ranks that load it in their set-up, under stock torchrun. It runs once."""
    if not _stock:
        job = make_job(2).start("builds.py", {"steps": STEPS}, env={"TASKD_PROCESS_ENABLE": None})
        assert job.end() == 0, job.output
        _stock.extend(weights(job))
    return _stock


@pytest.mark.parametrize("sdk", everyday([False, True], True))
def test_killed_in_a_build_of_the_set_up(make_job: MakeJob, stock: list[str], sdk: bool) -> None:
    job = make_job(2).start(
        "builds.py",
        {"steps": STEPS, "sdk": sdk, "points": [point("builds", 0, "building"), point("later", 1, "setup")]},
    )
    job.held("builds")
    job.release("later")
    job.wait((job.folder / "waits-1").exists, "rank 1 waits")
    (owner,) = job.kill("builds")
    assert job.end() == 0, job.output
    lock = job.folder / "ext" / "lock"
    assert f"the stale lock {lock} was removed: process {owner} held it and has ended" in job.output
    assert not lock.exists()
    assert weights(job) == stock


def test_killed_in_a_build_of_a_step(make_job: MakeJob) -> None:
    """The other rank leaves its wait, and no process starts anew."""
    plan = {"steps": STEPS, "sdk": True, "at": 4}
    undisturbed = make_job(2).start("builds.py", plan, env={"TASKD_PROCESS_ENABLE": None})
    assert undisturbed.end() == 0, undisturbed.output
    job = make_job(2).start(
        "builds.py", {**plan, "points": [point("builds", 0, "building"), point("later", 1, 4, "begin")]}
    )
    job.held("builds")
    pids = dict(job.pids)
    job.release("later")
    job.wait((job.folder / "waits-1").exists, "rank 1 waits")
    (owner,) = job.kill("builds")
    assert not job.recovered(1)["restart"], job.output
    assert job.end() == 0, job.output
    assert f"was removed: process {owner} held it and has ended" in job.output
    assert weights(job) == weights(undisturbed)
    assert job.results()[1]["pid"] == pids[1]


@pytest.fixture
def build_elsewhere(leak_mark: str) -> Iterator["list[subprocess.Popen[bytes]]"]:
    """Yield a list for builders that are not ranks. They are ended with the test."""
    made: list[subprocess.Popen[bytes]] = []
    yield made
    for one in made:
        one.kill()
        one.communicate()


def builder(job: Job, made: "list[subprocess.Popen[bytes]]", way: str) -> "subprocess.Popen[bytes]":
    """Start a process of another job that builds the extension that this job waits for."""
    lock = job.folder / "ext" / "lock"
    lock.parent.mkdir()
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(BUILDER), str(lock), way]
    pipe = subprocess.PIPE
    made.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, env=env, start_new_session=True))
    assert made[-1].stdout is not None
    assert [made[-1].stdout.readline().split()[0] for _ in range(2)] == [b"begins", b"builds"]
    return made[-1]


def test_a_wait_for_a_dead_owner_is_a_proven_hang(
    make_job: MakeJob, build_elsewhere: "list[subprocess.Popen[bytes]]"
) -> None:
    """The owner dies while rank 1 waits. Rank 0 waits for rank 1."""
    job = make_job(2)
    owner = builder(job, build_elsewhere, "watched")
    job.start("builds.py", {"steps": LATE + 2, "sdk": True, "at": LATE, "alone": 1})
    job.wait((job.folder / "waits-1").exists, "rank 1 waits")
    (job.folder / "ext" / "ext.so").write_text("0.5")
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    record = job.recovered(1)
    assert not record["restart"]
    diagnosis = job.named("diagnosis")[-1]
    assert (diagnosis["kind"], diagnosis["proven"]) == ("LOCK_FILE", True), diagnosis
    lock = job.folder / "ext" / "lock"
    assert f"waits for the lock file {lock}: process {owner.pid} held it and has ended" in diagnosis["sentence"]
    assert job.end() == 0, job.output
    assert f"the stale lock {lock} was removed" in job.output


@pytest.mark.thorough
def test_a_lock_that_nobody_signed_is_named_and_stays(
    make_job: MakeJob, build_elsewhere: "list[subprocess.Popen[bytes]]"
) -> None:
    """It cannot be determined here whether its owner lives on another node."""
    job = make_job(2)
    owner = builder(job, build_elsewhere, "stock")
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    job.start("builds.py", {"steps": LATE + 2, "sdk": True, "at": LATE, "alone": 1})
    job.wait((job.folder / "waits-1").exists, "rank 1 waits")
    (job.folder / "ext" / "ext.so").write_text("0.5")
    lock = job.folder / "ext" / "lock"
    diagnosis = job.wait(lambda: job.named("diagnosis"), "a diagnosis")[-1]
    assert (diagnosis["kind"], diagnosis["culprits"], diagnosis["proven"]) == ("LOCK_FILE", [1], False), diagnosis
    text = (
        f"waits for the lock file {lock}: it is not signed, so made without taskd, and no process seen here has it open"
    )
    assert text in diagnosis["sentence"]
    assert lock.exists()
    lock.unlink()
    assert job.end() == 0, job.output
    assert not job.named("recovered")


def test_a_job_that_builds_nothing_has_nothing_of_it(make_job: MakeJob) -> None:
    job = make_job(2).start("builds.py", {"steps": STEPS, "sdk": True, "none": True})
    assert job.end() == 0, job.output
    assert [result["modules"] for result in job.results()] == [[], []]
