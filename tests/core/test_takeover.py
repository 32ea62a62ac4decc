"""A manager that comes late, or was superseded: the records that the agents carry decide."""

from msgspec.structs import replace

from taskd.core.policy import Strategy
from taskd.core.recovery import Phase, Publish
from taskd.wire.kinds import JobRank, NodeRank
from taskd.wire.messages import Condition, Ledger, Order, Place, RankStatus, Stage
from tests.core.driver import Job

FORMER = Ledger(term=7, places=(NodeRank(0),), agreed=(Place(node_rank=NodeRank(0), agent_id="agent 0"),))
"""Ledger of a former manager of a job of one node."""


def test_a_new_manager_takes_over_in_the_middle_of_a_join() -> None:
    job = Job(sequence=1000)
    job.statuses = {
        rank: type(status)(rank=JobRank(rank), incarnation=rank, generation=4, stage=stage, step=5)
        for (rank, status), stage in zip(job.statuses.items(), (Stage.JOINED, Stage.RESTORED), strict=True)
    }
    actions = job.send(0)
    orders = [action.directive.order for action in actions if isinstance(action, Publish)]
    assert orders == [Order.RUN], "to form would be obsolete at once"
    assert (job.phase, job.generation, job.directive.sequence, job.incarnations) == (Phase.RUNNING, 4, 1001, [0, 1])


def test_a_process_that_a_former_manager_ordered_is_taken_for_a_newcomer() -> None:
    job = Job(sequence=1000).up()
    status = job.statuses[0]
    job.statuses[0] = type(status)(rank=JobRank(0), incarnation=1, generation=0, stage=Stage.STARTING)
    job.send(0)
    job.statuses[0] = type(status)(
        rank=JobRank(0), incarnation=1, generation=0, stage=Stage.PAUSED, step=-1, condition=Condition.EMPTY
    )
    job.send(0)
    job.say(1, Stage.PAUSED, cause="RuntimeError: connection reset")
    job.wait(2.5)
    assert (job.phase, job.order, job.incarnations) == (Phase.PAUSING, Order.PAUSE, [1, 0])
    assert [order.joins for order in job.directive.ranks] == [True, False]


def test_a_restart_does_not_wait_for_a_process_of_an_older_world() -> None:
    job = Job().up()
    job.kill(0)
    job.kill(1)
    assert job.incarnations == [2, 1]
    job.statuses[1] = RankStatus(rank=JobRank(1), incarnation=1, generation=1, stage=Stage.STARTING)
    job.send(0)
    assert (job.phase, job.generation, job.incarnations) == (Phase.RESTARTING, 3, [3, 2])


def test_a_manager_that_was_overtaken_follows_the_agents() -> None:
    job = Job().up()
    job.kill(0)
    job.statuses = {
        rank: RankStatus(rank=JobRank(rank), incarnation=1, generation=4, stage=Stage.STARTING) for rank in job.statuses
    }
    job.send(0)
    assert (job.phase, job.order, job.generation, job.incarnations) == (Phase.RUNNING, Order.RUN, 4, [1, 1])
    job.all(Stage.TRAINING, step=3)
    job.kill(1)
    assert (job.phase, job.incarnations) == (Phase.PAUSING, [1, 2])


def test_the_end_of_the_job_reaches_an_agent_that_knows_a_newer_world() -> None:
    job = Job(max_restarts=0).up()
    job.kill(0)
    assert job.stopped.exit_code == 1
    job.statuses[1] = RankStatus(rank=JobRank(1), incarnation=1, generation=4, stage=Stage.STARTING)
    job.send(0)
    assert (job.order, job.directive.generation, job.directive.exit_code) == (Order.STOP, 4, 1)
    assert job.directive.reason == job.stopped.reason


def test_a_job_that_ends_by_the_report_of_a_newer_world_ends_with_its_reason() -> None:
    """Two orders follow from one report: torchrun ends on the last node, which knows another manager's world."""
    job = Job().up()
    job.statuses[1] = RankStatus(rank=JobRank(1), incarnation=1, generation=4, stage=Stage.STARTING)
    job.hear(replace(job.status(0, leaving=True), generation=4))
    assert (job.order, job.directive.generation, job.directive.exit_code) == (Order.STOP, 4, 1)
    assert job.directive.reason == job.stopped.reason == "torchrun has ended on node 0"


def test_a_restart_does_not_count_a_process_that_another_manager_has_started_for_the_same_generation() -> None:
    job = Job().up()
    job.kill(0)
    job.kill(1)
    job.terms[1] = 77
    job.say(1, Stage.STARTING)
    assert (job.phase, job.generation, job.incarnations) == (Phase.RESTARTING, 3, [3, 2])


def test_a_checkpoint_that_a_former_manager_had_written_ends_the_job() -> None:
    """Rank 0 was not in the world that wrote it: its node was lost by then."""
    job = Job(nodes=3, per_node=1, sequence=1000)
    job.statuses = {
        rank: RankStatus(rank=JobRank(rank), incarnation=0, generation=2 if rank else 1, stage=stage, step=5)
        for rank, stage in enumerate((Stage.PAUSED, Stage.RESTORED, Stage.DUMPED))
    }
    for node in range(3):
        job.hear(replace(job.status(node), generation=2, ledger=Ledger(term=7, places=tuple(map(NodeRank, (0, 1, 2))))))
    assert job.at(Phase.RUNNING), "rank 1 still writes"
    job.ledger = Ledger(term=7, places=tuple(map(NodeRank, (0, 1, 2))))
    job.say(1, Stage.DUMPED)
    assert job.stopped.exit_code == 1
    assert job.stopped.reason == "an earlier manager ended the job; a checkpoint of step 5 was written"


def test_no_world_is_planned_under_a_number_that_may_be_another_managers() -> None:
    """Both managers have seen the loss and have numbered the next world 1.

    The agent obeyed the other manager then, which may have planned that world. It is unknown whether the ranks wait or
    are on their way into it.
    """
    job = Job(sequence=1000).up()
    job.ledger = FORMER
    job.kill(0)
    assert (job.phase, job.generation) == (Phase.PAUSING, 1)
    job.paused()
    assert (job.phase, job.order, job.generation) == (Phase.PAUSING, Order.PAUSE, 2)
    assert job.incarnations == [1, 0], "the same world"
    job.paused()
    assert (job.phase, job.generation) == (Phase.JOINING, 2)
    job.recovered()
    assert job.successes[0].record.attempts == 1


def test_a_drain_whose_number_may_be_another_managers_goes_on_under_another() -> None:
    """Nothing has failed, so no strategy is chosen again. The requested drain stays the strategy."""
    job = Job(nodes=2, per_node=1, allowed=(Strategy.EXIT,), sequence=1000).up()
    job.spare()
    job.ledger = replace(FORMER, places=(NodeRank(0), NodeRank(1)))
    job.send(0)
    job.send(1)
    assert job.core.move_from("1", job.now_s)[0] == ""
    job.ledger = replace(job.ledger, term=job.core.term)
    job.paused(newcomers=())
    job.paused(newcomers=(1,))
    assert (job.phase, job.order, job.generation) == (Phase.PAUSING, Order.PAUSE, 2)
    job.paused(newcomers=(1,))
    assert (job.phase, job.generation, job.holder(1)) == (Phase.JOINING, 2, "spare")


def test_a_job_of_which_nobody_holds_a_place_any_more_ends() -> None:
    """Its last manager restarted all ranks on another node, and was gone before that node received the order."""
    job = Job(sequence=1000)
    job.ledger = FORMER
    job.silent, job.spares = {"agent 0"}, {"evicted": -1}
    for _ in range(5):
        job.wait(job.core.policy.deadlines.wait_node_s / 4)
        assert job.at(Phase.FORMING) or job.stopped
    assert job.stopped.exit_code == 1
    assert "too few others are heard to take over the job" in job.stopped.reason


def test_a_manager_that_follows_believes_no_node_about_a_place_that_another_manager_has_given_to_it() -> None:
    """Two managers have each given the spare a different place, and this one has continued without node 1."""
    job = Job(nodes=3, per_node=1, allowed=(Strategy.RECOVER, Strategy.ELASTIC_TRAINING, Strategy.EXIT)).up()
    world = job.core.world
    job.spare()
    job.kill(0)
    assert job.holder(0) == "spare"
    world.remove([JobRank(1)])
    world.nodes.vacate(NodeRank(1))
    job.hear(replace(job.status(1), agent_id="spare"))
    job.statuses[2] = RankStatus(rank=JobRank(2), incarnation=1, generation=4, stage=Stage.STARTING)
    job.send(2)
    assert (job.phase, job.generation, world.places) == (Phase.RUNNING, 4, (0, 2))
    assert set(world.places) <= set(world.nodes.holders)
