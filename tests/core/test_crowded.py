"""Events that come while something else is in progress. `tests/sim/crowded.py` has found these cases."""

import pytest
from msgspec.structs import replace

from taskd.core.policy import Strategy
from taskd.core.recovery import Phase
from taskd.wire.kinds import JobRank, NodeRank
from taskd.wire.messages import Condition, Order, Refuses, Stage
from tests.core.driver import Job


def test_no_world_is_planned_to_which_a_lost_node_belongs() -> None:
    """Too few nodes report to decide about the only node left. The manager waits out its silence and plans nothing."""
    job = Job(nodes=2, per_node=1, allowed=(Strategy.ELASTIC_TRAINING, Strategy.EXIT)).up()
    job.kill(0)
    assert job.members == [1]
    job.now_s += 2.0  # node 0, which has to know of the next world, does not report at the moment
    job.say(1, Stage.PAUSED)
    assert job.phase is Phase.ANNOUNCING
    job.core.world.nodes.dead_nodes.add(NodeRank(1))
    job.core.job.absence.held.add(NodeRank(1))
    job.hear(job.status(0))
    assert (job.phase, job.order) == (Phase.ANNOUNCING, Order.PAUSE)


def test_a_newcomer_that_has_got_its_state_dumps_it_when_all_others_die() -> None:
    allowed = (Strategy.RECOVER, Strategy.DUMP, Strategy.EXIT)
    job = Job(nodes=3, per_node=1, allowed=allowed, dump_to=b"/shelf").up()
    job.spare()
    job.kill(0)
    job.paused()
    job.all(Stage.JOINED)
    job.all(Stage.RESTORED)
    job.kill(1)
    job.kill(2)
    assert (job.phase, job.members) == (Phase.PAUSING, [0])
    job.wait(0.1)
    job.say(0, Stage.PAUSED)
    assert job.order is Order.JOIN
    assert job.directive.plan is not None
    assert job.directive.plan.dump_to == b"/shelf"


@pytest.mark.parametrize(
    ("stage", "phase"),
    [
        (Stage.JOINED, Phase.RUNNING),
        (Stage.RESTORED, Phase.RUNNING),
        (Stage.COMMITTED, Phase.RUNNING),
        (Stage.FINISHED, Phase.FINISHING),
        (Stage.DUMPED, Phase.STOPPED),
    ],
)
def test_a_world_that_another_manager_has_planned_under_the_same_number_is_followed(stage: Stage, phase: Phase) -> None:
    """Both managers have seen the same loss. The agents have no order of this one yet and obey the other one's plan."""
    job = Job(nodes=1, per_node=2).up()
    job.kill(0)
    assert job.phase is Phase.PAUSING
    job.statuses[0] = replace(job.statuses[0], incarnation=1, generation=1, stage=stage)
    job.say(1, stage, step=6)
    assert (job.phase, job.generation) == (phase, 1)


def test_a_node_that_comes_back_and_refuses_leads_to_a_plan_that_dumps() -> None:
    """Nothing has failed, so no cause is known. The manager must not mistake the plan for one to train by."""
    allowed = (Strategy.ELASTIC_TRAINING, Strategy.DUMP, Strategy.EXIT)
    job = Job(nodes=2, per_node=1, allowed=allowed, dump_to=b"/shelf", min_nodes=2).up()
    world = job.core.world
    world.remove([JobRank(1)])
    world.nodes.vacate(NodeRank(1))
    world.nodes.agreed.pop(NodeRank(1))
    job.spare()
    assert job.phase is Phase.REARRANGING
    job.say(1, Stage.PAUSED, step=-1, condition=Condition.EMPTY, refuses=Refuses(no_newcomer="it cannot"))
    job.say(0, Stage.PAUSED)
    assert (job.phase, job.members) == (Phase.PAUSING, [0])
    job.say(0, Stage.PAUSED)
    assert job.order is Order.JOIN
    assert job.directive.plan is not None
    assert job.directive.plan.dump
