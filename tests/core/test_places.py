"""A place that is lost, given to another node, left absent, filled again, or emptied on purpose."""

from typing import Any

import pytest

from taskd.core.policy import Strategy
from taskd.core.recovery import AskCluster, AskKernel, Note, Phase
from taskd.core.recovery.record import CAME_BACK
from taskd.wire.kinds import NodeRank
from taskd.wire.messages import Condition, Order, Place, Stage
from tests.core.driver import Job


def three(**more: Any) -> Job:
    """Return a job of three nodes with two ranks each, in training."""
    return Job(nodes=3, **more).up()


def shrunken(**more: Any) -> Job:
    """Return a job that lost the middle one of three nodes for good and trains without it."""
    job = three(wait_node_s=30.0, **more)
    job.silence(1)
    survivors_pause(job)
    job.wait(31.0)
    assert job.core.record is not None
    assert job.core.record.decision.strategy is Strategy.ELASTIC_TRAINING
    job.paused(newcomers=()).recovered()
    return job


def survivors_pause(job: Job) -> None:
    for rank in (0, 1, 4, 5):
        job.say(rank, Stage.PAUSED)


# ---- recover


def test_a_spare_gets_the_place_of_a_lost_node_at_once() -> None:
    job = three()
    job.spare()
    job.silence(1)
    assert (job.phase, job.order, job.generation) == (Phase.PAUSING, Order.PAUSE, 1)
    assert Place(node_rank=NodeRank(1), agent_id="spare") in job.directive.places
    assert job.incarnations == [0, 0, 1, 1, 0, 0]
    assert job.did(AskCluster) == []
    job.paused(newcomers=(2, 3)).recovered()
    record = job.successes[0].record
    assert (record.decision.strategy, set(record.processes.kept)) == (Strategy.RECOVER, {0, 1, 4, 5})
    assert record.decision.reason.startswith("ranks 2, 3 move to another node, all others stay")
    assert job.core.job.budget is not None
    assert job.core.job.budget.spent == 1


def test_without_a_spare_the_cluster_is_asked_once_and_the_newcomer_takes_the_place() -> None:
    job = three()
    job.silence(1)
    survivors_pause(job)
    job.wait(20.0)
    assert [(ask.node_rank, "node 1 is lost" in ask.reason) for ask in job.did(AskCluster)] == [(1, True)]
    assert job.at(Phase.PAUSING)
    job.spare("newcomer", wants=1)
    assert (job.holder(1), job.generation) == ("newcomer", 1)
    for rank in (2, 3):
        job.say(rank, Stage.PAUSED, step=-1, condition=Condition.EMPTY)
    plan = job.directive.plan
    assert plan is not None
    assert (plan.target_step, plan.store_host, plan.store_key) == (5, "node0", "key of agent 0")
    assert [(transfer.donor, transfer.receivers) for transfer in plan.transfers] == [(0, (2, 3))]


def test_a_node_that_comes_back_in_time_goes_on_with_its_own_processes() -> None:
    job = three()
    job.silence(1)
    survivors_pause(job)
    job.wait(20.0)
    job.silent.clear()
    job.say(2, Stage.PAUSED)
    job.say(3, Stage.PAUSED)
    assert (job.order, job.incarnations) == (Order.JOIN, [0] * 6)
    record = job.recovered().successes[0].record
    assert (len(record.processes.replaced), len(record.processes.kept)) == (0, 6)
    assert record.decision.reason == CAME_BACK, "no rank has moved"


def test_the_candidate_that_was_meant_for_the_place_is_preferred() -> None:
    job = three()
    job.spare("a", wants=2)
    job.spare("b", wants=1)
    job.silence(1)
    assert job.holder(1) == "b"


def test_a_node_on_which_the_process_fails_again_and_again_gives_way_to_a_spare() -> None:
    job = Job(nodes=3, max_restarts=99).up()
    job.spare()
    for cause in ("exit code 1", "exit code 2", "exit code 3", "exit code 4"):
        if job.holder(1) == "spare":
            break
        job.kill(2, cause)
        job.paused(newcomers=(2,))
    assert job.holder(1) == "spare"
    assert "agent 1" in job.directive.ledger.excluded
    job.hear(job._report("agent 1", -1, (), leaving=False))
    assert job.core.world.nodes.candidate_for(NodeRank(1)) is None  # it gets no place any more


def test_with_every_survivor_gone_too_all_start_anew_on_what_is_there() -> None:
    job = three()
    job.spare()
    job.kill(0)
    job.kill(1)
    job.kill(4)
    job.kill(5)
    job.silence(1)
    assert (job.phase, job.holder(1)) == (Phase.RESTARTING, "spare")
    assert not any(order.joins for order in job.directive.ranks)


def test_a_restart_waits_for_the_node_that_the_cluster_was_asked_for() -> None:
    job = Job(nodes=3, per_node=1)
    for node in range(3):
        job.send(node)  # no rank is inside a resilient function
    job.silence(2)
    assert (job.phase, [ask.node_rank for ask in job.did(AskCluster)]) == (Phase.RESTARTING, [2])
    job.wait(100.0)
    assert job.at(Phase.RESTARTING)
    job.spare()
    assert (job.holder(2), job.order) == ("spare", Order.RUN)
    job.all(Stage.STARTING, step=-1)
    assert (job.phase, job.successes[0].record.decision.strategy) == (Phase.RUNNING, Strategy.RECOVER)


def test_a_node_that_has_just_been_given_a_place_keeps_it_when_another_process_is_lost() -> None:
    job = Job(nodes=3, per_node=1, allowed=(Strategy.RECOVER, Strategy.EXIT)).up()
    job.spare("first spare")
    job.spare("second spare")
    job.kill(0)
    given = job.holder(0)
    job.kill(1)
    assert {job.holder(0), job.holder(1)} == {"first spare", "second spare"}
    assert (job.phase, job.holder(0)) == (Phase.PAUSING, given)
    assert set(job.directive.ledger.excluded) == {"agent 0", "agent 1"}


def test_a_node_that_has_just_been_given_a_place_loses_it_when_its_new_process_is_lost() -> None:
    job = Job(nodes=2, per_node=1, allowed=(Strategy.RECOVER, Strategy.EXIT)).up()
    job.spare("first spare")
    job.spare("second spare")
    job.kill(0)
    given = job.holder(0)
    job.say(0, Stage.PAUSED, step=-1, condition=Condition.EMPTY)
    job.kill(0, step=-1)
    assert job.phase is Phase.PAUSING
    assert set(job.directive.ledger.excluded) == {"agent 0", given}


# ---- elastic training, dump, exit


def test_with_no_node_in_time_training_goes_on_with_fewer() -> None:
    job = three(wait_node_s=30.0)
    job.silence(1)
    survivors_pause(job)
    job.wait(29.0)
    assert job.at(Phase.PAUSING)
    assert job.members == [0, 1, 2, 3, 4, 5]
    job.wait(2.0)
    assert (job.phase, job.members, job.generation) == (Phase.PAUSING, [0, 1, 4, 5], 2)
    assert job.directive.ledger.places == (0, 2)
    assert any("no node came within 30 s" in note.text for note in job.did(Note))
    for rank, step in ((0, 5), (1, 4), (4, 5), (5, 4)):
        job.say(rank, Stage.PAUSED, step=step)
    plan = job.directive.plan
    assert plan is not None
    assert (plan.world_size, plan.members, plan.replicas) == (4, (0, 1, 4, 5), 6)
    assert [(transfer.donor, transfer.receivers) for transfer in plan.transfers] == [(0, (1, 3))]
    job.recovered()
    assert "not recover: no node came within 30 s" in job.successes[0].record.decision.reason


def test_a_node_that_comes_makes_the_world_full_again() -> None:
    job = shrunken()
    spent = job.core.job.budget.spent if job.core.job.budget is not None else -1
    job.spare()
    assert (job.phase, job.members, job.holder(1)) == (Phase.REARRANGING, [0, 1, 2, 3, 4, 5], "spare")
    assert [order.rank for order in job.directive.ranks if order.joins] == [2, 3]
    assert min(job.incarnations[2:4]) > 0
    job.paused(newcomers=(2, 3)).recovered()
    assert job.at(Phase.RUNNING)
    assert job.core.job.budget is not None
    assert job.core.job.budget.spent == spent  # nothing has failed
    assert set(job.core.world.places) == {0, 1, 2}


def test_the_node_that_was_given_up_is_a_candidate_when_it_is_back() -> None:
    job = shrunken()
    job.hear(job._report("agent 1", 1, (job.statuses[2], job.statuses[3]), leaving=False))
    assert (job.phase, job.holder(1), job.members) == (Phase.REARRANGING, "agent 1", [0, 1, 2, 3, 4, 5])


def test_what_a_node_says_that_holds_no_place_changes_no_rank() -> None:
    job = three()
    job.spare()
    job.silence(1)
    before = {rank: view.status for rank, view in job.core.world.ranks.items()}
    job.hear(job._report("agent 1", 1, (job.statuses[2], job.statuses[3]), leaving=False))
    assert {rank: view.status for rank, view in job.core.world.ranks.items()} == before


def test_below_the_smallest_number_of_nodes_a_checkpoint_is_written_and_the_job_ends() -> None:
    job = three(wait_node_s=30.0, min_nodes=3, dump_to=b"/shelf")
    job.silence(1)
    survivors_pause(job)
    job.wait(31.0)
    survivors_pause(job)
    plan = job.directive.plan
    assert plan is not None
    assert "node 1 is lost" in plan.dump
    assert plan.members == (0, 1, 4, 5)
    job.all(Stage.JOINED)
    job.all(Stage.RESTORED)
    for rank in (0, 1, 4):
        job.say(rank, Stage.DUMPED)
    assert not job.at(Phase.STOPPED)
    job.say(5, Stage.DUMPED)
    assert job.stopped.reason.endswith("a checkpoint of step 5 was written")
    assert job.stopped.exit_code == 1


def test_a_loss_while_the_checkpoint_is_written_has_it_written_by_the_others() -> None:
    job = three(wait_node_s=30.0, min_nodes=3, dump_to=b"/shelf", allowed=(Strategy.RECOVER, Strategy.DUMP))
    job.silence(1)
    survivors_pause(job)
    job.wait(31.0)
    survivors_pause(job)
    job.all(Stage.RESTORED)
    job.say(0, Stage.DUMPED)
    job.kill(5)
    assert (job.phase, job.members) == (Phase.PAUSING, [0, 1, 4])
    job.paused(newcomers=())
    job.all(Stage.DUMPED)
    assert job.stopped.reason.endswith("a checkpoint of step 5 was written")


def test_the_end_tells_why_each_strategy_was_passed_over() -> None:
    job = three(wait_node_s=30.0, min_nodes=3)
    job.silence(1)
    survivors_pause(job)
    job.wait(31.0)
    for text in (
        "not recover: no node came within 30 s",
        "not elastic-training: 2 nodes would be left, the job needs 3",
        "not dump: there is no directory for it (TASKD_CHECKPOINT_DIR)",
    ):
        assert text in job.stopped.reason


# ---- drain


def test_a_drained_node_hands_its_ranks_to_a_spare_and_nothing_is_charged() -> None:
    job = three()
    job.spare()
    refusal, actions = job.core.move_from("node2", job.now_s)
    job._take(actions)
    assert (refusal, job.phase, job.holder(2)) == ("", Phase.REARRANGING, "agent 2")
    assert job.directive.reason == "node 2 is drained"
    for rank in range(6):
        job.say(rank, Stage.PAUSED)
    assert (job.order, job.holder(2)) == (Order.PAUSE, "spare")
    assert "agent 2" in job.directive.ledger.excluded
    job.paused(newcomers=(4, 5)).recovered()
    record = job.successes[0].record
    assert (record.target_step, set(record.processes.replaced)) == (5, {4, 5})
    assert job.core.job.budget is not None
    assert job.core.job.budget.spent == 0


def drained() -> Job:
    job = three()
    job.spare()
    job._take(job.core.move_from("2", job.now_s)[1])
    assert (job.order, job.directive.at_commit) == (Order.PAUSE, True)
    return job


def test_a_drain_waits_for_the_step_under_way() -> None:
    job = drained()
    job.wait(1.0)
    assert job.directive.at_commit
    for rank in range(6):
        assert job.directive.at_commit  # nobody is stuck
        job.say(rank, Stage.PAUSED, step=6)
    assert [order.incarnation for order in job.directive.ranks] == [0, 0, 0, 0, 1, 1]
    job.say(4, Stage.PAUSED, step=-1, condition=Condition.EMPTY)
    job.say(5, Stage.PAUSED, step=-1, condition=Condition.EMPTY)
    assert job.directive.plan is not None
    assert job.directive.plan.target_step == 6


@pytest.mark.parametrize("one_is_out", [True, False])
def test_a_drain_does_not_wait_for_a_step_that_cannot_end(one_is_out: bool) -> None:
    job = drained()
    if one_is_out:
        job.say(0, Stage.PAUSED, step=6)
    job.wait(0.1)
    job.wait(0.1)
    assert job.directive.at_commit
    job.wait(0.15 if one_is_out else 5.0)
    assert (job.order, job.directive.at_commit, job.directive.reason) == (Order.PAUSE, False, "node 2 is drained")


def test_a_drain_for_which_nobody_waits_any_more_moves_nobody() -> None:
    job = drained()
    job.core.world.nodes.candidates.clear()
    for rank in range(6):
        job.say(rank, Stage.PAUSED, step=6)
    assert (job.order, job.holder(2), job.incarnations) == (Order.JOIN, "agent 2", [0] * 6)


def test_a_fault_during_a_drain_frees_everybody_at_once() -> None:
    job = drained()
    job.kill(0)
    assert (job.order, job.directive.at_commit) == (Order.PAUSE, False)


@pytest.mark.parametrize(
    ("node", "why"),
    [
        ("1", "no node waits for its place"),
        ("7", "found no node '7' in the job, expected one of 0 (node0), 1 (node1), 2 (node2)"),
        ("nobody", "found no node 'nobody'"),
    ],
)
def test_a_drain_that_cannot_be_is_refused(node: str, why: str) -> None:
    job = three()
    refusal, actions = job.core.move_from(node, job.now_s)
    assert why in refusal
    assert actions == []
    assert job.at(Phase.RUNNING)


def test_a_drain_is_refused_during_a_recovery_and_of_the_only_node() -> None:
    job = three()
    job.spare()
    job.kill(0)
    assert "the job is pausing" in job.core.move_from("1", job.now_s)[0]
    alone = Job().up()
    alone.spare()
    assert "it is the only node" in alone.core.move_from("0", alone.now_s)[0]


# ---- the kernel's answer


def test_a_silent_agent_whose_port_is_closed_is_lost_at_once() -> None:
    job = three()
    job.silent.add("agent 1")
    job.wait(0.3)
    job.wait(0.4)
    assert [ask.agent_id for ask in job.did(AskKernel)] == ["agent 1"]
    job._take(job.core.answered("agent 1", listening=False, now_s=job.now_s))
    assert (job.phase, job.core.world.vacant) == (Phase.PAUSING, (1,))


@pytest.mark.parametrize("listening", [True, False])
def test_an_agent_that_was_heard_meanwhile_or_still_listens_is_not_lost(listening: bool) -> None:
    job = three()
    job.silent.add("agent 1")
    job.wait(0.7)
    if not listening:
        job.send(1)
    job._take(job.core.answered("agent 1", listening=listening, now_s=job.now_s))
    assert (job.phase, job.core.world.vacant) == (Phase.RUNNING, ())


def test_a_candidate_whose_port_is_closed_is_forgotten() -> None:
    job = three()
    job.spare()
    job.core.answered("spare", listening=False, now_s=job.now_s)
    assert job.core.world.nodes.candidate_for(NodeRank(0)) is None
