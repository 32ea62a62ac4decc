"""A script that a warm process cannot run: a cold one takes the rank, and the others stay."""

import pytest

from tests.e2e.conftest import MakeJob
from tests.e2e.plan import point

LIBRARY = "tests.e2e.scripts.chosen"


def test_a_library_that_was_imported_too_early(make_job: MakeJob) -> None:
    """One restart pays for the kill and for both new processes. After the next kill there is a cold start at once."""
    points = [point("one", 1, 3, "begin"), point("two", 0, 5, "begin")]
    job = make_job(2).start(
        "chooses.py",
        {"steps": 6, "points": points},
        options=("--standalone", "--max_restarts=2"),
        env={"TASKD_PRELOAD": LIBRARY},
    )
    job.held("one")
    job.warm()
    first = job.pids[0]
    job.kill("one")
    record = job.recovered(1)
    assert (record["restart"], record["kept"], record["warm"]) == (False, {"0": first}, {"1": False}), job.output
    (failed,) = job.named("attempt failed")
    assert failed["reason"].startswith("rank 1's warm process failed in its set-up (exit code 1 at ")
    assert "Expected one of cpu, cuda" in failed["reason"]
    assert failed["reason"].endswith(
        "a cold one takes its place, for the same restart; all processes of this job start cold from now on, as with "
        "TASKD_STANDBY=0"
    )
    assert record["setbacks"] == [failed["reason"]]
    assert "SIGKILL" in record["causes"]["1"]
    job.kill("two")
    record = job.recovered(2)
    assert (record["restart"], record["warm"], record["setbacks"]) == (False, {"0": False}, [])
    assert job.end() == 0, job.output
    zero, one = job.results()
    assert zero["weights"] == one["weights"]


@pytest.mark.thorough
def test_a_set_up_that_fails_in_a_cold_process_too(make_job: MakeJob) -> None:
    """Then all start anew, for the same restart."""
    job = make_job(2).start(
        "chooses.py",
        {"steps": 4, "points": [point("one", 1, 3, "begin")], "spoilt": True},
        options=("--standalone", "--max_restarts=1"),
    )
    job.held("one")
    job.warm()
    job.kill("one")
    record = job.recovered(1)
    assert record["restart"]
    warm, cold = record["setbacks"]
    assert warm.startswith("rank 1's warm process failed in its set-up (exit code 1 at ")
    assert cold.startswith("attempt 1 (recover-in-place) failed: rank 1's new process: exit code 1 at ")
    assert job.end() == 0, job.output
