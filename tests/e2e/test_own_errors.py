"""Errors of the script itself: the job soon ends with its cause, and with stock's status and error text."""

import pytest

from tests.e2e.conftest import MakeJob
from tests.thorough import everyday

COLD: dict[str, str | None] = {"TASKD_STANDBY": "0"}
STATUS_OF = {"StopIteration": 1, "sys.exit": 3, "KeyboardInterrupt": -2, "GeneratorExit": 1, "BaseException": 1}


def test_a_resilient_function_in_another_one_ends_the_job_at_once(make_job: MakeJob) -> None:
    job = make_job(2).start("own_errors.py", {"how": "nested"}, env=COLD)
    assert job.end() == 1
    assert not job.named("recovered"), job.output
    reason = job.named("stopped")[-1]["reason"]
    assert "ConfigError: found epoch() (" in reason
    assert "called while nested() (" in reason
    assert "call them one after the other" in reason
    assert job.output.count("ConfigError: found epoch()") >= 3, "both ranks, and the end"


@pytest.mark.slow
@pytest.mark.parametrize("how", everyday(STATUS_OF, "StopIteration"))
def test_what_leaves_a_survivors_script_has_the_status_of_stock(make_job: MakeJob, how: str) -> None:
    """The old world's groups are still being destroyed then."""
    counts = {"TASKD_SELF_CHECK": "off"}  # the script counts how often its function is entered
    job = make_job(2).start("own_errors.py", {"how": how, "groups": 6}, env={"TASKD_MAX_RESTARTS": "1", **counts})
    assert job.end() == 1
    assert "terminate called" not in job.output
    assert len(job.named("recovered")) == 1, job.output
    assert f"exitcode  : {STATUS_OF[how]} " in job.output
    assert "SIGABRT" not in job.output
    if how != "sys.exit":
        assert f"\n[rank0]: {how}" in job.output, "its traceback"


@pytest.mark.thorough
@pytest.mark.slow
def test_a_torn_checkpoint_is_told_once_at_length_and_named(make_job: MakeJob) -> None:
    job = make_job(2).start("own_errors.py", {"how": "torn"}, env={**COLD, "TASKD_MAX_RESTARTS": "2"})
    assert job.end() == 1
    assert job.output.count("Traceback (most recent call last)") - job.output.count("torchrun has") <= 3, job.output
    assert "[rank0]: fails in its set-up as the process before it did: RuntimeError: PytorchStreamReader" in job.output
    checkpoint = job.folder / "last.pt"
    assert f"the file {checkpoint} is torn or damaged: remove it or put a whole one in its place" in job.output
    recovered = job.named("recovered")
    assert len(recovered) == 2, "as many as --max_restarts allows: what is away may come"


def test_an_error_of_the_training_that_fresh_processes_repeat_ends_the_job(make_job: MakeJob) -> None:
    """It is repeated once. The process id in its message does not matter for the comparison."""
    job = make_job(2).start("own_errors.py", {"how": "repeats"}, env=COLD)
    assert job.end() == 1
    reason = job.named("stopped")[-1]["reason"]
    assert "as a rank did before all processes started anew, with the same error" in reason
    assert "own_errors.py:" in reason
    assert "has a bad batch" in reason
    assert len(job.named("recovered")) == 1


@pytest.mark.thorough
def test_a_script_may_catch_its_own_error_and_train_on(make_job: MakeJob) -> None:
    job = make_job(2).start("own_errors.py", {"how": "caught"})
    assert job.end() == 0, job.output
    assert "rank 0 goes on after a bad batch" in job.output
    assert not job.named("recovered"), job.output
    assert [(job.folder / f"result-{rank}").read_text() for rank in range(2)] == ["8", "8"]
