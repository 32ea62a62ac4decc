"""Work of rank 0 alone while the others wait for it is no fault: it is reported, and waited for."""

import pytest

from tests.e2e.conftest import MakeJob
from tests.e2e.job import Job
from tests.thorough import everyday

pytestmark = pytest.mark.slow
WORK = ["upload", "compute", "receive", "rest", "sample"]
SETTINGS: dict[str, str | None] = {"TASKD_HANG_MIN_S": "1"}
TOLD_S = 2.5
"""Includes the time to query the ranks, on a busy machine."""


def start(job: Job, work: list[str], restarts: int, env: dict[str, str | None]) -> Job:
    """Start a job with such work, each for a time that is a hang by its rhythm.

    The manager receives steps about once a second. It has to receive some before the first such work.
    """
    plan = {"steps": 200, "every": 15, "seconds": 3.0, "work": work}
    return job.start(
        "foreign.py", plan, options=("--standalone", f"--max_restarts={restarts}"), env={**SETTINGS, **env}
    )


def warnings(job: Job) -> int:
    """Return the number of lines that warn of the hang."""
    return job.output.count("TASKD_HANG_UNPROVEN_S")


@pytest.mark.parametrize("work", everyday(WORK, "upload"))
def test_work_of_one_rank_is_told_of_and_waited_for(make_job: MakeJob, work: str) -> None:
    job = start(make_job(2), [work], 0, {})
    assert job.end() == 0
    (diagnosis,) = job.named("diagnosis")
    assert (diagnosis["culprits"], diagnosis["proven"]) == ([0], False)
    assert diagnosis["hang"]["silent_s"] < TOLD_S
    assert f"in {work}" in diagnosis["sentence"], "where it is"
    assert warnings(job) == 1
    assert job.named("recovered") == []


@pytest.mark.thorough
def test_such_work_again_and_again_neither_ends_a_job_nor_warns_again(make_job: MakeJob) -> None:
    job = start(make_job(2), WORK, 3, {})
    assert job.end() == 0
    assert warnings(job) == 1
    assert job.named("recovered") == []
    assert len(job.named("processes")) == 1


def test_what_was_interrupted_is_done_again_and_spends_no_restart(make_job: MakeJob) -> None:
    job = start(make_job(2), WORK, 0, {"TASKD_HANG_UNPROVEN_S": "1"})
    assert job.end() == 0
    (recovered,) = job.named("recovered")
    assert recovered["replaced"].keys() == {"0"}
    results = [(job.folder / f"result-{rank}").read_text() for rank in range(2)]
    assert results[0] == results[1]
