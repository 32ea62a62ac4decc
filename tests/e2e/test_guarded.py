"""Inexactness that only a fault would show: it is found at the fault or after it, and all processes start anew."""

from pathlib import Path
from typing import Any

import pytest

from taskd.runtime.records.selfcheck import SELF_CHECK, CheckOutcome
from tests.e2e.conftest import MakeJob
from tests.e2e.job import Job
from tests.e2e.plan import point

COLD: dict[str, str | None] = {"TASKD_STANDBY": "0"}
STEPS = 10


def stock(make_job: MakeJob, how: str, **plan: Any) -> list[dict[str, Any]]:
    """Return the results of the training under plain torchrun."""
    env: dict[str, str | None] = {"TASKD_PROCESS_ENABLE": None}
    job = make_job(2).start("guarded.py", {"how": how, "steps": STEPS, **plan}, env=env)
    assert job.end() == 0, job.output
    return job.results()


def killed(make_job: MakeJob, how: str, *at: object, **plan: Any) -> Job:
    """Start the job, and return it when rank 1 waits at a point of its script."""
    points = [point("one", 1, *at)]
    job = make_job(2).start("guarded.py", {"how": how, "steps": STEPS, "points": points, **plan}, env=COLD)
    job.held("one")
    return job


def killed_and_exact(make_job: MakeJob, how: str, *at: object) -> Job:
    """Kill rank 1 there. Check that the job ends as under plain torchrun."""
    job = killed(make_job, how, *at)
    job.kill("one")
    assert job.end() == 0, job.output
    assert job.results() == stock(make_job, how), job.output
    return job


def restarts(job: Job) -> list[bool]:
    """Return for each recovery whether all processes started anew."""
    return [record["restart"] for record in job.named("recovered")]


def test_an_evaluation_with_other_weights(make_job: MakeJob) -> None:
    """Rank 1 is killed in the first one, in which all ranks have the other weights. All go back to copies."""
    job = killed_and_exact(make_job, "swap", 3, "evaluation")
    assert restarts(job) == [False]
    assert "the parameters are not known to be those of step 3" in job.output


@pytest.mark.thorough
def test_between_evaluations_with_other_weights(make_job: MakeJob) -> None:
    """The living processes are kept."""
    job = killed_and_exact(make_job, "swap", 4, "begin")
    assert restarts(job) == [False]
    assert "at a fault in it all ranks go back to the newest copies" in job.output


@pytest.mark.thorough
def test_a_new_process_draws_a_number_more(make_job: MakeJob) -> None:
    """It draws in its first evaluation, as a loader with persistent workers does. The ranks compare after it."""
    job = killed_and_exact(make_job, "draws", 5, "begin")
    assert restarts(job) == [False, True]
    assert "the number of draws: alike on all ranks behind an evaluation before a fault, and not after it" in job.output


@pytest.mark.thorough
def test_a_split_that_is_not_seeded(make_job: MakeJob) -> None:
    """The new process has another split."""
    job = killed(make_job, "split", 5, "begin")
    job.kill("one")
    assert job.end() == 0, job.output
    assert job.results() == stock(make_job, "split", again=True), job.output
    assert restarts(job)[-1:] == [True]
    assert "the content of the dataset of 'loader' was" in job.output


def test_batches_that_a_new_process_is_given_otherwise(make_job: MakeJob) -> None:
    """Batches are compared if the predecessor had done the forward pass of the step."""
    job = killed(make_job, "gain", 5, "forward")
    job.kill("one")
    assert job.end() == 0, job.output
    assert job.results() == stock(make_job, "gain", again=True), job.output
    assert restarts(job) == [False, True]
    assert "the batches of 'loader': a new process was given another one than the process before it" in job.output
    (verdict,) = job.run_dir.rglob(SELF_CHECK)
    assert CheckOutcome.NOT_EXACT.value in verdict.read_text(), "later faults are known to be inexact"


@pytest.mark.thorough
def test_a_module_that_is_edited_meanwhile(make_job: MakeJob, tmp_path: Path) -> None:
    """All start anew with the new text, as under plain torchrun."""
    module = tmp_path / "of_the_user.py"
    module.write_text("SCALE = 1.0")
    job = killed(make_job, "edited", 5, "begin", module=str(module))
    module.write_text("SCALE = 1.5")
    job.kill("one")
    assert job.end() == 0, job.output
    assert job.results() == stock(make_job, "edited", module=str(module)), job.output
    assert restarts(job)[-1:] == [True]
    assert f"the text of {module} was" in job.output
