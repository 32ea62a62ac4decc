"""Failures of a new process alone: all start anew, as under torchrun, and the reason is reported."""

from tests.e2e.conftest import MakeJob
from tests.e2e.job import Job
from tests.e2e.plan import point

STEPS = 7


def play(job: Job, *, kill: bool) -> list[str]:
    """Kill rank 1 before step 5 under taskd, with one restart allowed; or train undisturbed under stock torchrun."""
    points = [point("dies", 1, 5, "begin")] if kill else []
    env: dict[str, str | None] = {"TASKD_STANDBY": "0"} if kill else {"TASKD_PROCESS_ENABLE": None}
    job.start(
        "together.py",
        {"steps": STEPS, "points": points, "sdk": kill},
        options=("--standalone", f"--max_restarts={int(kill)}"),
        env=env,
    )
    if kill:
        job.kill("dies")
    assert job.end() == 0, job.output
    return [str(result) for result in job.results()]


def test_a_set_up_for_which_all_ranks_are_needed_has_all_start_anew(make_job: MakeJob) -> None:
    """They go on from the script's own checkpoint, to the same weights. Log and records name the newcomer's error."""
    undisturbed = [result.split() for result in play(make_job(2), kill=False)]
    job = make_job(2)
    resumed = [result.split() for result in play(job, kill=True)]
    assert [weights for weights, _ in resumed] == [weights for weights, _ in undisturbed]
    assert [step for _, step in resumed] == ["4", "4"]
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
