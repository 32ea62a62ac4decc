"""The manager's machine: faults in every phase, one at a time."""

import copy

import pytest

from taskd.core.policy import Strategy
from taskd.core.recovery import Phase
from taskd.core.recovery.record import tell
from taskd.errors import TransitionError
from taskd.wire.kinds import JobRank
from taskd.wire.messages import Condition, Order, Refuses, Stage
from tests.core.driver import Job


def test_a_killed_rank_is_replaced_and_restored() -> None:
    job = Job(per_node=3).up()
    job.kill(0)
    assert (job.phase, job.order, job.generation, job.incarnations) == (Phase.PAUSING, Order.PAUSE, 1, [1, 0, 0])
    assert [order.joins for order in job.directive.ranks] == [True, False, False]
    job.paused()
    plan = job.directive.plan
    assert job.order is Order.JOIN
    assert plan is not None
    assert (plan.generation, plan.target_step, plan.adopt) == (1, 5, ())
    assert [(transfer.donor, transfer.receivers) for transfer in plan.transfers] == [(1, (0,))]
    job.recovered()
    assert (job.phase, job.order) == (Phase.RUNNING, Order.RUN)
    record = job.successes[0].record
    assert record.decision.strategy is Strategy.RECOVER_IN_PLACE
    assert tell(record.causes) == "rank 0: signal 9 (SIGKILL)"
    assert (record.processes.kept, record.processes.replaced) == ({1: 11, 2: 12}, {0: 110})


def test_success_is_told_only_after_every_rank_has_committed() -> None:
    job = Job().up()
    job.kill(0)
    job.paused()
    job.all(Stage.JOINED)
    job.all(Stage.RESTORED)
    job.say(0, Stage.COMMITTED, step=6)
    assert (job.phase, job.successes) == (Phase.RESUMING, [])
    job.say(1, Stage.COMMITTED, step=6)
    assert len(job.successes) == 1


@pytest.mark.parametrize("phase", [Phase.JOINING, Phase.RESUMING])
def test_a_loss_while_a_world_is_built_takes_a_new_generation(phase: Phase) -> None:
    job = Job(per_node=3).up()
    job.kill(0)
    job.paused()
    if phase is Phase.RESUMING:
        job.all(Stage.JOINED)
        job.all(Stage.RESTORED)
    job.kill(2)
    assert (job.phase, job.generation, job.incarnations) == (Phase.PAUSING, 2, [1, 0, 1])
    job.paused(newcomers=(0, 2)).recovered()
    assert job.successes[0].record.causes.keys() == {0, 2}


def test_losses_that_come_together_cost_one_restart_and_later_ones_another() -> None:
    job = Job(per_node=4).up()
    job.kill(0)
    job.kill(1)
    assert job.core.job.budget is not None
    assert job.core.job.budget.spent == 1
    job.wait(5.0)
    job.kill(2)
    assert job.core.job.budget.spent == 2


def test_a_rank_that_does_not_pause_is_fenced() -> None:
    job = Job().up()
    job.kill(0)
    job.say(0, Stage.PAUSED, step=-1, condition=Condition.EMPTY)
    job.wait(9.0)
    assert job.incarnations == [1, 0]
    job.wait(2.0)
    job.wait(0.6)  # the agent was asked for the rank's activity, and no answer comes
    assert job.core.phase is Phase.RESTARTING  # no rank is left that could give a state
    assert job.incarnations == [2, 2]


def test_a_survivor_that_hangs_among_others_is_replaced_alone() -> None:
    job = Job(per_node=3).up()
    job.kill(0)
    job.say(0, Stage.PAUSED, step=-1, condition=Condition.EMPTY)
    job.say(1, Stage.PAUSED)
    job.wait(11.0)
    job.wait(0.6)
    assert (job.phase, job.incarnations) == (Phase.PAUSING, [1, 0, 1])


def test_a_stray_error_is_retried_with_the_same_processes() -> None:
    job = Job().up()
    job.say(1, Stage.PAUSED, cause="RuntimeError: connection reset")
    assert job.at(Phase.STRAYED)
    job.wait(1.0)
    assert job.at(Phase.STRAYED)
    job.wait(1.5)
    assert (job.phase, job.order, job.incarnations) == (Phase.PAUSING, Order.PAUSE, [0, 0])
    job.paused(newcomers=()).recovered()
    record = job.successes[0].record
    assert record.decision.strategy is Strategy.RETRY
    assert tell(record.causes) == "rank 1: RuntimeError: connection reset"


def test_a_stray_error_is_explained_by_a_loss() -> None:
    job = Job().up()
    job.say(1, Stage.PAUSED, cause="RuntimeError: connection reset")
    job.kill(0)
    assert job.at(Phase.PAUSING)
    assert job.core.record is not None
    assert tell(job.core.record.causes) == "rank 0: signal 9 (SIGKILL)"


def test_a_stray_rank_waits_for_one_that_still_starts() -> None:
    job = Job()
    job.send(0)
    job.say(0, Stage.TRAINING, step=0)
    job.say(0, Stage.PAUSED, step=0)
    job.wait(5.0)
    assert job.at(Phase.STRAYED)
    job.say(1, Stage.TRAINING, step=0)
    job.wait(5.0)
    assert job.at(Phase.PAUSING)


def test_all_killed_at_once_start_anew() -> None:
    job = Job().up()
    job.kill(0)
    job.kill(1)
    assert (job.phase, job.order, job.generation) == (Phase.RESTARTING, Order.RUN, 2)
    assert [order.joins for order in job.directive.ranks] == [False, False]
    job.all(Stage.STARTING, step=-1)
    assert job.at(Phase.RUNNING)
    assert job.successes[0].record.decision.restart


def test_a_newcomer_that_is_restored_counts_as_survivor() -> None:
    job = Job().up()
    job.kill(0)
    job.paused()
    job.all(Stage.JOINED)
    job.all(Stage.RESTORED)
    job.kill(1)
    assert (job.phase, job.order) == (Phase.PAUSING, Order.PAUSE)


def test_a_script_without_the_sdk_restarts_as_a_whole() -> None:
    job = Job()
    job.send(0)
    job.kill(0)
    assert job.at(Phase.RESTARTING)
    assert job.core.record is not None
    assert "rank 1 is not inside a resilient function" in job.core.record.decision.reason


def test_a_stale_report_of_the_former_process_is_not_cooperation() -> None:
    job = Job().up()
    job.kill(0)
    job.kill(1)  # all restart
    job.say(0, Stage.STARTING, step=-1)
    job.kill(0)  # before any report on the new process of rank 1
    assert job.at(Phase.RESTARTING)


def test_no_consistent_state_starts_anew() -> None:
    job = Job().up()
    job.kill(0)
    job.say(0, Stage.PAUSED, step=-1, condition=Condition.EMPTY)
    job.say(1, Stage.PAUSED, step=5, condition=Condition.TORN)
    assert job.at(Phase.RESTARTING)
    assert job.core.record is not None
    assert "no rank holds a consistent state" in job.core.record.decision.reason


@pytest.mark.parametrize("late", [False, True], ids=["beforehand", "by the newcomer"])
def test_what_a_process_refuses_is_not_tried(*, late: bool) -> None:
    said = Refuses(no_newcomer="PowerSGD (train.py:7)")
    job = Job().up()
    if not late:
        job.say(0, Stage.COMMITTED, refuses=said)
    job.kill(1)
    if late:
        assert job.core.phase is Phase.PAUSING
        job.say(0, Stage.PAUSED)
        job.say(1, Stage.PAUSED, condition=Condition.EMPTY, refuses=said)
    assert job.core.phase is Phase.RESTARTING
    assert job.core.record is not None
    assert "PowerSGD (train.py:7)" in job.core.record.decision.reason
    assert job.core.job.budget is not None
    assert job.core.job.budget.spent == 1


def test_a_rank_that_asks_for_it_has_all_start_anew_for_nothing() -> None:
    said = Refuses(no_rebuild="train.py:31", anew="the self-check has changed the training (train.py:31)")
    job = Job().up()
    job.say(1, Stage.COMMITTED, refuses=said)
    job.wait(0.1)
    assert job.at(Phase.RESTARTING)
    assert job.core.record is not None
    assert job.core.record.decision.restart
    assert "rank 1: the self-check has changed the training" in job.core.record.decision.reason
    assert job.core.job.budget is not None
    assert job.core.job.budget.spent == 0
    assert job.incarnations == [1, 1]
    assert not any(order.joins for order in job.directive.ranks)


def test_a_job_that_others_start_is_not_started_anew_on_demand() -> None:
    said = Refuses(no_rebuild="train.py:31", anew="the self-check has changed the training (train.py:31)")
    job = Job(restart_all=False).up()
    job.say(1, Stage.COMMITTED, refuses=said)
    job.wait(0.1)
    assert job.at(Phase.RUNNING)


def test_stepped_survivors_adopt_their_step() -> None:
    job = Job().up()
    job.kill(0)
    job.say(0, Stage.PAUSED, step=-1, condition=Condition.EMPTY)
    job.say(1, Stage.PAUSED, step=5, condition=Condition.STEPPED)
    plan = job.directive.plan
    assert plan is not None
    assert (plan.target_step, plan.adopt) == (6, (1,))


def test_the_same_fault_without_progress_ends_the_job() -> None:
    job = Job(max_restarts=99).up()
    for step in (6, 7):  # each time one more step was committed
        job.kill(1, "exit code 1")
        job.paused(newcomers=(1,))
        job.all(Stage.JOINED)
        job.all(Stage.RESTORED)
        job.all(Stage.COMMITTED, step=step)
    assert job.at(Phase.RUNNING)
    for _ in range(4):
        assert not job.at(Phase.STOPPED)
        job.kill(1, "exit code 1", step=7)
        if job.at(Phase.PAUSING):
            job.kill(1, "exit code 1")
        assert job.at(Phase.RESTARTING) or job.at(Phase.STOPPED)
        job.all(Stage.TRAINING, step=7)
    assert job.stopped.exit_code == 1
    assert "rank 1 failed 4 times at step 7 with the same cause (exit code 1), 3 of them after" in job.stopped.reason


def test_a_step_of_every_rank_is_progress_also_after_a_restart() -> None:
    job = Job(max_restarts=99).up()
    for step in (6, 7, 8):
        job.kill(0)
        job.kill(1)
        assert job.at(Phase.RESTARTING)
        job.all(Stage.STARTING, step=-1)
        job.all(Stage.TRAINING, step=step - 1)
        job.all(Stage.COMMITTED, step=step)
    assert job.at(Phase.RUNNING)


def test_an_error_that_no_new_world_mends_climbs_the_ladder() -> None:
    job = Job(max_restarts=99).up()
    job.say(1, Stage.PAUSED, cause="ValueError: bad batch")
    for _ in range(3):
        job.wait(2.5)
        assert job.at(Phase.PAUSING)
        job.paused(newcomers=())
        job.all(Stage.JOINED)
        job.all(Stage.RESTORED)
        job.say(1, Stage.PAUSED, cause="ValueError: bad batch")
    job.wait(2.5)
    assert job.at(Phase.RESTARTING)
    assert job.core.record is not None
    assert (
        "not recover-in-place: no process is lost, and to rebuild the groups has failed"
        in job.core.record.decision.reason
    )


def test_a_spent_budget_ends_the_job() -> None:
    job = Job(max_restarts=0).up()
    job.kill(1)
    assert job.order is Order.STOP
    assert "all 0 restarts of the job are spent" in job.stopped.reason


def test_old_reports_change_nothing() -> None:
    job = Job().up()
    job.kill(0)
    old = [job.status(0) for _ in range(2)]
    job.say(0, Stage.PAUSED, step=-1, condition=Condition.EMPTY)
    before = copy.deepcopy(job.core)
    for status in old:
        assert job.core.hear(status, job.now_s) == []
    assert job.core == before


def test_a_pause_of_an_older_generation_does_not_count() -> None:
    job = Job().up()
    stale = job.statuses[1]
    job.kill(0)
    job.say(0, Stage.PAUSED, step=-1, condition=Condition.EMPTY)
    job.statuses[1] = type(stale)(rank=JobRank(1), incarnation=0, generation=0, stage=Stage.PAUSED, step=5)
    job.send(0)
    assert job.at(Phase.PAUSING)


def test_what_cannot_happen_raises_and_changes_nothing_but_the_rest_is_heard() -> None:
    job = Job().up()
    job.kill(0)
    job.paused()
    before = copy.deepcopy(job.core)
    honest = job.statuses[1]
    job.statuses[1] = type(honest)(rank=JobRank(1), incarnation=0, generation=1, stage=Stage.TRAINING, step=5)
    with pytest.raises(TransitionError, match="STARTED of 1 in phase JOINING, generation 1"):
        job.send(0)
    before.world.nodes.by_place = job.core.world.nodes.by_place
    assert job.core == before
    job.statuses[1] = honest
    job.recovered()
    assert job.at(Phase.RUNNING)


def test_a_failed_strategy_gives_way_to_the_next() -> None:
    job = Job().up()
    job.kill(0)
    for _ in range(3):
        assert job.at(Phase.PAUSING)
        job.paused()
        job.wait(21.0)  # the world is not built in time
    assert job.at(Phase.RESTARTING)
    assert job.core.record is not None
    assert "not recover-in-place: it has failed for this fault" in job.core.record.decision.reason
