"""The first step after a recovery, in which the ranks call different collectives."""

from tests.e2e.conftest import MakeJob
from tests.e2e.plan import point


def test_ranks_in_different_collectives_are_found_before_the_worlds_deadline(make_job: MakeJob) -> None:
    """They are reported with each rank's collective. Then all start anew, and call the same ones."""
    job = make_job(2).start(
        "differs.py",
        {"steps": 4, "points": [point("one", 1, 3, "begin")]},
        env={"TASKD_STANDBY": "0", "TASKD_HANG_FIRST_S": "3"},
    )
    job.kill("one")
    record = job.recovered(1)
    assert record["restart"], job.output
    (told,) = record["setbacks"]
    assert told.startswith("attempt 1 (recover-in-place) failed: Rank 0 (node 0, pid ")
    assert "rank 1 (node 0, pid " in told
    assert "made another call than the others: allreduce " in told
    assert "where the others have broadcast " in told
    assert "no step for 3." in told
    assert "SIGKILL" in record["causes"]["1"], "what the fault is does not change"
    assert job.named("diagnosis")[0]["kind"] == "KILLED"
    assert job.end() == 0, job.output
    zero, one = job.results()
    assert zero == one
