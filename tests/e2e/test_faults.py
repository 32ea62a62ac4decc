"""Faults other than a kill, in a resilient script: those that are retried, that replace a rank, or that end the job."""

import signal
from collections.abc import Callable

import pytest

from tests.e2e.conftest import STEPS, MakeJob
from tests.e2e.job import Job
from tests.e2e.plan import point

pytestmark = pytest.mark.slow
Same = Callable[[Job], None]
ABORTED = "signal 6 (SIGABRT)"
"""End that torch 2.13 now and then gives a process with living groups, instead of its exit status."""


def test_a_broken_network_and_an_error_of_one_rank(make_job: MakeJob, same: Same) -> None:
    """Cut connections of living ranks: the same processes redo the step. A ValueError: that rank is replaced."""
    points = [point("cut", 1, 4, "begin", do="break"), point("error", 0, 7, "begin", do="raise")]
    job = make_job(3).start("train.py", {"steps": STEPS, "points": points})
    retried = job.recovered(1)
    assert retried["strategy"] == "retry"
    assert retried["kept"].keys() == {"0", "1", "2"}
    assert retried["target_step"] == 3
    replaced = job.recovered(2)
    assert replaced["replaced"].keys() == {"0"}
    error = "ValueError: the plan says so: error"
    cause = replaced["causes"]["0"]
    assert cause.startswith(("exit code 1 at ", ABORTED))
    assert cause.endswith(f": {error}")
    assert replaced["target_step"] == 6
    assert job.end() == 0
    assert job.output.count(f"[rank0]: {error}") == 1
    same(job)


def test_an_error_that_repeats_ends_the_job(make_job: MakeJob) -> None:
    points = [point("bug", 1, 4, "begin", do="raise", always=True)]
    job = make_job(2).start("train.py", {"steps": STEPS, "points": points})
    assert job.end() == 1
    assert job.output.count("[rank1]: ValueError: the plan says so: bug") == 3, (
        "in place once, and after a start of all"
    )
    assert [record["restart"] for record in job.named("recovered")] == [True], "in place nothing is mended"
    said = "rank 1 failed at step 3 as a rank did before all processes started anew, with the same error"
    assert said in job.output
    stopped = job.named("stopped")[-1]
    assert stopped["exit_code"] == 1
    assert "bug in the job" in stopped["reason"]
    root_cause = job.output[job.output.index("Root Cause") :]
    assert "rank      : 1 (local_rank: 1)" in root_cause


def test_a_rank_that_does_not_move_is_fenced(make_job: MakeJob, same: Same) -> None:
    """A stopped survivor cannot leave its collective: it is killed and replaced together with the dead rank."""
    points = [point("dies", 1, 5, "forward"), point("stops", 2, 5, "begin")]
    env: dict[str, str | None] = {"TASKD_PAUSE_TIMEOUT_S": "2"}
    job = make_job(3).start("train.py", {"steps": STEPS, "points": points}, env=env)
    job.warm()
    stopped = job.kill("stops", signal_number=signal.SIGSTOP)
    job.release("stops")
    job.kill("dies")
    record = job.recovered(1)
    assert record["replaced"].keys() == {"1", "2"}
    assert "did not pause in time" in record["causes"]["2"]
    assert job.pids[2] != stopped[0]
    assert job.end() == 0
    same(job)
