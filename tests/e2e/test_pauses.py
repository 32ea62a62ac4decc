"""Survivors that do not pause at once: in a checkpoint, or in a script that goes on after every error."""

from collections.abc import Callable

import pytest

from tests.e2e.conftest import STEPS, MakeJob
from tests.e2e.job import Job
from tests.e2e.plan import point

Same = Callable[[Job], None]


def test_a_rank_that_writes_a_checkpoint_and_holds_the_only_state_is_waited_for(make_job: MakeJob, same: Same) -> None:
    """The job waits, however much longer that takes than a pause may. Then it is recovered in place."""
    points = [point("saves", 0, 4, "saving"), point("dies", 1, 5, "begin")]
    env: dict[str, str | None] = {"TASKD_PAUSE_TIMEOUT_S": "1"}
    job = make_job(2).start("train.py", {"steps": STEPS, "points": points, "saves": True}, env=env)
    kept = job.held("saves")
    job.kill("dies")
    job.says("rank 0 has not paused in")
    job.says("it is inside a checkpoint")
    job.release("saves")
    record = job.recovered(1)
    assert record["kept"] == {"0": kept}
    assert record["target_step"] == 4
    assert job.end() == 0
    assert job.output.count("has not paused in") == 1
    same(job)


@pytest.mark.thorough
def test_a_checkpoint_that_does_not_end_is_waited_for_until_the_limit(make_job: MakeJob, same: Same) -> None:
    """Then no rank is left to give its state, and both go on from copies."""
    points = [point("saves", 0, 4, "saving"), point("dies", 1, 5, "begin")]
    env: dict[str, str | None] = {"TASKD_PAUSE_TIMEOUT_S": "1", "TASKD_PAUSE_LIMIT_S": "5"}
    job = make_job(2).start("train.py", {"steps": STEPS, "points": points, "saves": True}, env=env)
    job.held("saves")
    job.kill("dies")
    record = job.recovered(1)
    assert not record["restart"]
    assert record["kept"] == {}
    assert "did not pause in time" in record["causes"]["0"]
    assert job.end() == 0
    same(job)


def test_a_script_that_goes_on_after_every_error_is_stopped_at_its_next_collective(
    make_job: MakeJob, same: Same
) -> None:
    points = [point("dies", 1, 5, "forward")]
    job = make_job(2).start("train.py", {"steps": STEPS, "points": points, "swallows": True})
    job.kill("dies")
    record = job.recovered(1)
    assert record["kept"].keys() == {"0"}
    assert job.end() == 0
    assert job.output.count("rank 0 swallows") <= 1
    same(job)


def test_a_step_by_gradients_that_were_never_reduced_is_nobodys_to_give_away(make_job: MakeJob, same: Same) -> None:
    """The survivor swallows the error of its backward pass, steps by its own gradients, and commits the result."""
    points = [point("dies", 1, 5, "forward"), point("trusts", 0, 5, "forward")]  # else it may pause before that pass
    job = make_job(2).start("train.py", {"steps": STEPS, "points": points, "trusts": True})
    job.held("trusts")
    job.kill("dies")
    job.release("trusts")
    record = job.recovered(1)
    assert record["kept"].keys() == {"0"}
    assert record["target_step"] < 5, "from a copy"
    assert job.end() == 0
    assert "rank 0 trusts in spite of RuntimeError" in job.output
    same(job)
