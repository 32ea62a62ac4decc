"""Ends of a job: nodes that leave, ranks that finish, and a second resilient function."""

import pytest
from msgspec.structs import replace

from taskd.core.policy import Strategy
from taskd.core.recovery import Note, Phase
from taskd.wire.kinds import JobRank
from taskd.wire.messages import Order, Stage
from tests.core.driver import DEADLINES, Job


def test_a_lost_node_ends_the_job_with_its_reason() -> None:
    job = Job(nodes=2, per_node=1, allowed=(Strategy.RETRY, Strategy.RECOVER_IN_PLACE)).up()
    job.silence(1)
    assert job.at(Phase.STOPPED)
    assert "no agent on the node of rank 1" in job.stopped.reason


def test_a_node_that_fell_silent_while_the_job_formed_is_missed() -> None:
    job = Job(nodes=2, per_node=1)
    job.send(0)
    job.now_s += 11.0
    job.core.tick(job.now_s)
    job.send(1)
    assert job.core.job.absence.held == {0}  # the half without the first node decides nothing
    job.spare(wants=0)
    job._take(job.core.tick(job.now_s))
    assert (job.phase, job.holder(0)) == (Phase.RESTARTING, "spare")


def test_nodes_that_are_missing_are_named_once() -> None:
    """torchrun runs on the first node. The second node's agent reports to no manager, or to a different one."""
    job = Job(nodes=2, per_node=1)
    job.send(0)
    told: list[str] = []
    for _ in range(30):
        job.now_s += 1.0
        told += [action.text for action in job.core.tick(job.now_s) if isinstance(action, Note)]
    assert [text.partition(":")[0] for text in told] == ["1 of 2 nodes missing after 10 s, node 1"]


def test_a_job_that_never_formed_ends_with_the_last_node_that_came() -> None:
    job = Job(nodes=3, per_node=1)
    job.send(0)
    job.send(1)
    for node in (0, 1):
        assert job.at(Phase.FORMING)
        job.statuses[node] = replace(job.statuses[node], stage=Stage.EXITED)
        job.send(node, leaving=True)
    assert job.stopped.exit_code == 0
    assert "others never came" in job.stopped.reason


def test_a_torchrun_that_ends_is_no_fault_of_its_ranks() -> None:
    job = Job().up()
    job.statuses = {
        rank: type(status)(
            rank=JobRank(rank), incarnation=0, generation=0, stage=Stage.DEAD, cause="signal 15 (SIGTERM)"
        )
        for rank, status in job.statuses.items()
    }
    job.send(0, leaving=True)
    assert job.stopped.reason == "torchrun has ended on node 0"


def test_a_node_that_was_told_to_stop_is_not_lost_while_its_ranks_run() -> None:
    """The ranks may agree to stop and save. No rank is paused, and the job ends well if all of them do."""
    job = Job(nodes=2, per_node=1).up()
    job.hear(replace(job.status(0), leaving=True))
    assert (job.phase, job.order) == (Phase.RUNNING, Order.RUN)
    for stage in (Stage.FINISHED, Stage.EXITED):
        job.statuses[0] = replace(job.statuses[0], stage=stage)
        job.hear(replace(job.status(0), leaving=True))
        assert job.phase is Phase.RUNNING
    job.say(1, Stage.FINISHED)
    assert (job.phase, job.order) == (Phase.FINISHING, Order.RELEASE)
    job.say(1, Stage.EXITED)
    assert job.stopped.exit_code == 0


def test_a_node_that_was_told_to_stop_is_lost_with_its_first_rank() -> None:
    job = Job(nodes=2, per_node=1).up()
    job.hear(replace(job.status(0), leaving=True))
    job.send(0, leaving=True)
    assert job.phase is not Phase.RUNNING


@pytest.mark.parametrize("first", ["exits", "is lost"])
def test_a_node_that_stopped_behind_its_training_is_not_waited_for(first: str) -> None:
    """The last report did not arrive: the newest one shows released ranks, and nothing more comes."""
    job = Job(nodes=2, per_node=1).up()
    job.hear(replace(job.status(0), leaving=True))
    job.all(Stage.FINISHED)
    job.hear(replace(job.status(0), leaving=True))
    if first == "exits":
        job.say(1, Stage.EXITED)
    job.silence(0)
    if first != "exits":
        assert job.at(Phase.FINISHING)
        job.say(1, Stage.EXITED)
    known = "as far as is known: node 0 was stopped, and its last report is missing"
    assert (job.stopped.exit_code, job.stopped.reason) == (0, f"every rank exited with status 0, {known}")


def test_a_node_that_was_told_to_stop_and_falls_silent_is_lost() -> None:
    """The node was asked to stop and lost power before it had stopped. The peers of its ranks wait for them."""
    job = Job(nodes=2, per_node=1).up()
    job.hear(replace(job.status(0), leaving=True))
    job.silence(0)
    assert (job.phase, job.core.world.vacant) == (Phase.PAUSING, (0,))


def test_release_only_after_all_have_finished_and_the_end_after_all_have_exited() -> None:
    job = Job().up()
    job.say(0, Stage.FINISHED)
    assert job.order is Order.RUN
    job.say(1, Stage.FINISHED)
    assert (job.phase, job.order) == (Phase.FINISHING, Order.RELEASE)
    job.say(0, Stage.EXITED)
    assert job.at(Phase.FINISHING)
    job.say(1, Stage.EXITED)
    assert (job.stopped.exit_code, job.stopped.reason) == (0, "every rank exited with status 0")


def test_a_rank_that_left_early_does_not_keep_the_others() -> None:
    job = Job().up()
    job.say(0, Stage.FINISHED)
    job.say(1, Stage.EXITED)
    assert job.order is Order.RELEASE


def test_a_second_resilient_function_reopens_the_job() -> None:
    job = Job().up()
    job.all(Stage.FINISHED, step=6)
    job.say(0, Stage.TRAINING, step=6)
    assert job.at(Phase.FINISHING)
    job.say(1, Stage.FINISHED, step=9)  # its TRAINING report was lost
    assert (job.phase, job.order) == (Phase.RUNNING, Order.RUN)
    job.say(0, Stage.FINISHED, step=9)
    assert job.order is Order.RELEASE


def test_a_loss_between_two_resilient_functions_waits_for_the_others() -> None:
    job = Job(per_node=3).up()
    job.all(Stage.FINISHED, step=6)
    job.say(0, Stage.TRAINING, step=6)
    job.kill(2)
    assert job.at(Phase.FINISHING)
    job.say(1, Stage.TRAINING, step=6)
    assert (job.phase, job.order, job.incarnations) == (Phase.PAUSING, Order.PAUSE, [0, 0, 1])


def test_a_loss_after_the_end_restarts_when_nobody_comes_back() -> None:
    job = Job().up()
    job.all(Stage.FINISHED, step=6)
    job.kill(1)
    job.wait(DEADLINES.confirm_s - 0.1)
    assert job.at(Phase.FINISHING)
    job.wait(0.2)
    assert job.at(Phase.RESTARTING)


def test_a_script_that_fails_after_its_last_step_has_all_start_anew_at_once() -> None:
    """The duration of the others' work after training is unknown, and torchrun would not wait for them either."""
    job = Job(per_node=3).up()
    job.all(Stage.FINISHED, step=6)
    job.say(0, Stage.EXITED)
    job.kill(1, "exit code 3")
    assert (job.phase, job.incarnations) == (Phase.RESTARTING, [1, 1, 1])
    job = Job(max_restarts=0).up()
    job.all(Stage.FINISHED, step=6)
    job.kill(1, "exit code 3")
    assert job.stopped.exit_code == 1
