"""What fails in a new process alone: all start anew, as torchrun has them do, and the reason is told."""

from typing import Any

import pytest

from tests.e2e.conftest import MakeJob
from tests.e2e.job import Job
from tests.e2e.plan import point

pytestmark = pytest.mark.timeout(200)
STEPS = 7


def play(job: Job, *, taskd: bool) -> list[Any]:
    """Rank 1 is killed once, before step 5; one restart is allowed, and more where gloo alone needs some."""
    plan = {"steps": STEPS, "points": [point("dies", 1, 5, "begin")], "sdk": taskd}
    env: dict[str, str | None] = {"TASKD_STANDBY": "0"} if taskd else {"TASKD_PROCESS_ENABLE": None}
    job.start("together.py", plan, options=("--standalone", f"--max_restarts={1 if taskd else 9}"), env=env)
    job.kill("dies")
    assert job.end() == 0, job.output
    return job.results()


def test_a_set_up_for_which_all_ranks_are_needed_goes_on_as_under_torchrun(make_job: MakeJob) -> None:
    """From the script's own checkpoint, to the same weights; and what failed in the newcomer stands everywhere."""
    stock = play(make_job(2), taskd=False)
    job = make_job(2)
    assert play(job, taskd=True) == stock
    error = "TypeError: found 1 of 2 ranks"
    (failed,) = job.named("attempt failed")
    assert failed["reason"].startswith("rank 1's new process: exit code 1 at ")
    assert error in failed["reason"]
    (record,) = job.named("recovered")
    assert record["restart"]
    assert record["setbacks"] == [f"attempt 1 (recover-in-place) failed: {failed['reason']}"]
    assert error in record["causes"]["1"]
    assert (
        job.output.count("attempt 1 (recover-in-place) failed: rank 1's new process: ") == 2
    )  # at once, and at the end
    assert "bug in the job" not in job.output
