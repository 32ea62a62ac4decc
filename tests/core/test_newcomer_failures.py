"""A new process that fails before its world commits a step: all ranks restart, at no extra charge."""

from dataclasses import replace

import pytest

from taskd.core.policy import Deadlines, Strategy
from taskd.core.recovery import Phase, Setback
from taskd.wire.messages import Condition, Refuses, Stage
from tests.core.driver import DEADLINES, Job

ERROR = "exit code 1 at train.py:12 (RuntimeError: found 1 of 2 ranks)"


def spent(job: Job) -> int:
    assert job.core.job.budget is not None
    return job.core.job.budget.spent


def setbacks(job: Job) -> list[str]:
    return [action.text for action in job.did(Setback)]


@pytest.mark.parametrize("after_s", [0.1, 5.0])
def test_a_set_up_that_fails_in_a_newcomer_alone_has_all_start_anew(after_s: float) -> None:
    """At once or later: the budget is charged one restart, and the newcomer's own error is named first."""
    job = Job(max_restarts=1).up()
    job.kill(0)
    job.say(1, Stage.PAUSED)
    job.wait(after_s)
    job.kill(0, ERROR, step=-1)
    assert (job.phase, job.incarnations, spent(job)) == (Phase.RESTARTING, [2, 1], 1)
    assert setbacks(job) == [f"attempt 1 (recover-in-place) failed: rank 0's new process: {ERROR}"]
    assert job.core.record is not None
    assert job.core.record.setbacks == setbacks(job)
    assert job.directive.reason.startswith(f"rank 0: {ERROR}")
    assert "not recover-in-place: it has failed for this fault" in job.core.record.decision.reason


@pytest.mark.parametrize("at", [Phase.JOINING, Phase.RESUMING])
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("cause", [ERROR, "signal 6 (SIGABRT): abort() was called", "it exited"])
def test_a_first_step_that_fails_has_all_start_anew(at: Phase, rank: int, cause: str) -> None:
    """The same holds for a survivor that cannot continue beside the newcomer."""
    job = Job(per_node=3, max_restarts=1).up()
    job.kill(0)
    job.paused()
    if at is Phase.RESUMING:
        job.all(Stage.JOINED)
        job.all(Stage.RESTORED)
    assert job.at(at)
    job.wait(DEADLINES.merge_s + 1)
    if cause == "it exited":
        job.say(rank, Stage.EXITED)
    else:
        job.kill(rank, cause)
    assert (job.phase, spent(job)) == (Phase.RESTARTING, 1)
    assert len(setbacks(job)) == 1


def test_a_world_that_somebody_else_has_harmed_is_tried_again_with_the_processes_that_live() -> None:
    job = Job(per_node=4, max_restarts=9).up()
    job.kill(0)
    job.paused()
    job.kill(3)  # SIGKILL: not an error of the script
    assert (job.phase, job.incarnations) == (Phase.PAUSING, [1, 0, 0, 1])
    job.kill(0, "signal 9 (SIGKILL)", step=-1)
    assert job.at(Phase.PAUSING)


def test_a_survivor_that_ends_while_all_pause_is_one_fault_with_the_first() -> None:
    job = Job(per_node=3, max_restarts=1).up()
    job.kill(0)
    job.kill(1, "exit code 1")
    assert (job.phase, job.incarnations, spent(job)) == (Phase.PAUSING, [1, 1, 0], 1)


def test_where_all_may_not_start_anew_the_end_tells_the_error() -> None:
    job = Job(allowed=(Strategy.RETRY, Strategy.DUMP, Strategy.EXIT, Strategy.RECOVER)).up()
    job.kill(0)
    assert job.at(Phase.STOPPED)
    job = Job(max_restarts=9, allowed=(Strategy.RECOVER_IN_PLACE,)).up()
    for _ in range(4):
        job.kill(0, ERROR, step=5)
        if job.at(Phase.PAUSING):
            job.say(1, Stage.PAUSED, condition=Condition.CLEAN)
            job.kill(0, ERROR, step=-1)
        job.all(Stage.TRAINING)
    assert ERROR in job.stopped.reason
    assert "bug in the job" in job.stopped.reason


def test_a_world_that_cannot_be_formed_tells_who_has_said_what() -> None:
    """The reasons of all attempts are reported; then all restart."""
    job = Job(max_restarts=1).up()
    job.kill(0)
    error = "RuntimeError: DDP expects same model across all ranks"
    for _ in range(3):
        job.paused()
        job.all(Stage.JOINED)
        job.all(Stage.RESTORED)
        job.say(1, Stage.PAUSED, cause=error)
        job.wait(DEADLINES.confirm_s)
    assert (job.phase, spent(job)) == (Phase.RESTARTING, 1)
    assert setbacks(job) == [f"attempt {n} (recover-in-place) failed: rank 1: {error}" for n in (1, 2, 3)]


@pytest.mark.parametrize("at", [Phase.JOINING, Phase.RESUMING])
def test_a_first_step_that_fails_of_the_script_itself_is_not_tried_again(at: Phase) -> None:
    """It failed beside a new process. The report names it before its consequences in the others, of any rank."""
    job = Job(max_restarts=1).up()
    job.kill(0)
    job.paused()
    if at is Phase.RESUMING:
        job.all(Stage.JOINED)
        job.all(Stage.RESTORED)
    error = "RuntimeError: DDP expects same model across all ranks, but Rank 1 has 28 params"
    closed = "RuntimeError: [gloo/transport/tcp/pair.cc:538] Connection closed by peer"
    job.say(0, Stage.PAUSED, cause=closed, condition=Condition.EMPTY)
    job.say(1, Stage.PAUSED, cause=error, refuses=Refuses(no_newcomer=f"the first step has failed: {error}"))
    job.wait(DEADLINES.confirm_s)
    assert (job.phase, job.incarnations, spent(job)) == (Phase.RESTARTING, [2, 1], 1)
    assert setbacks(job) == [f"attempt 1 (recover-in-place) failed: rank 1: {error}; rank 0: {closed}"]


@pytest.mark.parametrize(("setup_s", "limit_s"), [(1.0, 60.0), (20.0, 200.0), (400.0, 600.0), (None, 600.0)])
def test_a_newcomer_that_waits_for_others_in_its_set_up_has_all_start_anew(
    setup_s: float | None, limit_s: float
) -> None:
    """They restart as soon as its set-up takes much longer than that of the processes that started together."""
    job = Job(max_restarts=1)
    job.core.job.policy = replace(job.core.policy, deadlines=Deadlines())
    job.send(0)
    if setup_s is not None:
        job.wait(setup_s)
        job.all(Stage.TRAINING, step=0)
    job.all(Stage.COMMITTED)
    job.kill(0)
    job.say(1, Stage.PAUSED)
    job.wait(limit_s - 0.5)
    assert job.at(Phase.PAUSING)
    job.wait(1.0)
    assert (job.phase, spent(job)) == (Phase.RESTARTING, 1)
    (told,) = setbacks(job)
    assert f"rank 0 did not reach the resilient function within {limit_s:g} s" in told


def test_a_newcomer_that_somebody_else_starts_has_all_the_time_that_the_setting_says() -> None:
    """The first processes give no measure of a start (a worker of Ray, its imports): they were started before."""
    job = Job(max_restarts=1)
    job.core.job.policy = replace(job.core.policy, deadlines=Deadlines(learn_set_up=False))
    job.send(0)
    job.wait(1.0)
    job.all(Stage.TRAINING, step=0)
    job.all(Stage.COMMITTED)
    job.kill(0)
    job.say(1, Stage.PAUSED)
    job.wait(Deadlines().replace_s - 0.5)
    assert job.at(Phase.PAUSING)
    job.wait(1.0)
    assert job.phase is Phase.RESTARTING
