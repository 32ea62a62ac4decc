"""Jobs whose ranks copy a state that no other rank has: all return to the newest copies, and never to a mixture."""

from collections.abc import Iterable
from typing import Any

import pytest
from msgspec.structs import replace

from taskd.core.policy import Strategy
from taskd.core.recovery import Phase
from taskd.core.recovery.ranks import plan_restore
from taskd.wire.kinds import JobRank
from taskd.wire.messages import Condition, Order, RankStatus, Stage, WorldPlan
from taskd.wire.state import StateCopy, Unshared
from tests.core.driver import Job

ALL = (Strategy.RETRY, Strategy.RECOVER_IN_PLACE, Strategy.RECOVER, Strategy.ELASTIC_TRAINING, Strategy.EXIT)


def copies(*steps: int, of: Iterable[int]) -> tuple[StateCopy, ...]:
    return tuple(StateCopy(of=JobRank(rank), step=step) for rank in of for step in steps)


def sharded(nodes: int = 1, per_node: int = 4, allowed: tuple[Strategy, ...] = ALL, sets: int = 4) -> Job:
    """Return a job in which rank r alone holds shard r, with copies of steps 2 and 4."""
    job = Job(nodes, per_node, allowed)
    job.replicas = {rank: f"shard {rank % sets}" for rank in range(nodes * per_node)}
    job.copies = {rank: copies(2, 4, of=[rank]) for rank in range(nodes * per_node)}
    return job.up()


def pause(job: Job, lost: Iterable[int], step: int = 5) -> WorldPlan | None:
    """Pause newcomers for the lost ranks and all others. Return the plan, if there is one."""
    lost = [*lost]
    for rank in sorted(job.core.world.ranks):
        condition = Condition.EMPTY if rank in lost else Condition.CLEAN
        job.say(rank, Stage.PAUSED, step=-1 if rank in lost else step, condition=condition)
    return job.directive.plan


def loads(plan: WorldPlan | None) -> list[tuple[int, int, int]]:
    assert plan is not None
    return [(load.receiver, load.holder, load.of) for load in plan.loads]


def test_all_go_back_to_the_newest_copies() -> None:
    job = sharded()
    job.kill(3)
    plan = pause(job, [3])
    assert plan is not None
    assert (plan.target_step, plan.copied, plan.transfers, plan.adopt) == (4, 4, (), ())
    assert loads(plan) == [(rank, rank, rank) for rank in range(4)]
    assert job.core.record is not None
    assert job.core.record.resumption.redone == 1


def test_the_newest_step_is_the_one_that_all_have() -> None:
    """Rank 3 died while a copy was being written."""
    job = sharded()
    assert job.copies is not None
    job.copies[3] = copies(2, of=[3])
    job.kill(3)
    plan = pause(job, [3])
    assert plan is not None
    assert (plan.target_step, plan.copied) == (2, 2)


def test_first_copies_that_are_heard_of_with_a_death_count() -> None:
    """Every rank has copies. The rank that reported this died before the manager received the report."""
    job = sharded()
    first, job.copies = job.copies, None
    job.all(Stage.TRAINING)
    job.copies = first
    job.kill(3)
    plan = pause(job, [3])
    assert plan is not None
    assert plan.target_step == 4


def test_a_rank_whose_own_copies_are_gone_gets_them_from_who_keeps_them() -> None:
    job = sharded(nodes=2, per_node=2)
    assert job.copies is not None
    job.copies = {
        0: copies(2, 4, of=[0, 2]),
        1: copies(2, 4, of=[1, 3]),
        2: (),
        3: (),
    }
    job.kill(2)
    job.kill(3)
    assert loads(pause(job, [2, 3])) == [(0, 0, 0), (1, 1, 1), (2, 0, 2), (3, 1, 3)]


def test_nobody_goes_back_while_every_set_has_a_holder() -> None:
    job = sharded(sets=2)
    job.kill(3)
    plan = pause(job, [3])
    assert plan is not None
    assert (plan.target_step, plan.loads, plan.copied) == (5, (), 4)
    assert [(transfer.donor, transfer.receivers) for transfer in plan.transfers] == [(1, (3,))]


def test_a_copy_of_another_set_is_never_taken() -> None:
    job = sharded(sets=2)
    assert job.copies is not None
    job.copies = {rank: copies(4, of=[0, 2]) for rank in range(4)}
    job.kill(1)
    job.kill(3)
    assert pause(job, [1, 3]) is None
    assert job.at(Phase.RESTARTING)


def test_all_processes_may_be_lost() -> None:
    job = sharded()
    for rank in range(4):
        job.kill(rank)
    assert job.at(Phase.PAUSING)
    assert loads(pause(job, range(4))) == [(rank, rank, rank) for rank in range(4)]


def test_without_copies_all_start_anew() -> None:
    job = sharded()
    job.copies = {}
    job.kill(3)
    assert pause(job, [3]) is None
    assert job.at(Phase.RESTARTING)
    assert job.core.record is not None
    assert "no step is held by a rank of every replica set" in job.core.record.decision.reason


def test_a_job_that_makes_none_does_not_wait_for_them() -> None:
    job = Job(1, 4, ALL)
    job.replicas = {rank: f"shard {rank}" for rank in range(4)}
    job.up()
    job.kill(3)
    assert job.at(Phase.RESTARTING)


def test_a_smaller_world_never_takes_copies_for_the_ranks_that_it_lacks() -> None:
    job = sharded(nodes=2, per_node=2, allowed=(Strategy.ELASTIC_TRAINING, Strategy.EXIT))
    job.kill(3)
    assert job.core.record is not None
    assert job.core.record.decision.restart
    assert "no rank of replica set 'shard 3' is left to give its state" in job.core.record.decision.reason


def test_a_second_fault_goes_back_no_further_than_it_must() -> None:
    """Ranks 0 and 1 are already at the copies' step. Rank 2 dies while it loads its copy; its newcomer can read it."""
    job = sharded()
    job.kill(3)
    pause(job, [3])
    job.all(Stage.JOINED)
    job.kill(2)
    for rank in (0, 1):
        job.say(rank, Stage.PAUSED, step=4)
    for rank in (2, 3):
        job.say(rank, Stage.PAUSED, step=-1, condition=Condition.EMPTY)
    plan = job.directive.plan
    assert plan is not None
    assert plan.target_step == 4
    assert loads(plan) == [(2, 2, 2), (3, 3, 3)]


def test_the_steps_that_are_done_again_are_told_once() -> None:
    job = sharded()
    job.kill(3, step=7)
    pause(job, [3], step=7)
    job.all(Stage.JOINED)
    job.all(Stage.RESTORED, step=4)
    job.all(Stage.COMMITTED, step=5)
    assert job.at(Phase.RUNNING)
    assert job.directive.order is Order.RUN
    assert job.core.job.step == 5


def saving(saved: dict[int, int], known: tuple[StateCopy, ...] | None = None) -> Job:
    """Return a job in which rank r alone holds shard r. Some ranks know of a checkpoint."""
    job = Job(1, 4, ALL)
    job.replicas = {rank: f"shard {rank}" for rank in range(4)}
    job.copies = None if known is None else dict.fromkeys(range(4), known)
    job.saved = saved
    return job.up()


def test_where_nobody_else_has_it_all_go_back_to_the_newest_checkpoint() -> None:
    """Rank 0 died as the last checkpoint was written. It counts if one rank knows that it is complete."""
    job = saving({0: 2, 1: 4, 2: 2, 3: 4})
    job.kill(3)
    job.saved = {0: 2, 1: 4, 2: 2}
    plan = pause(job, [3])
    assert plan is not None
    assert (plan.saved, plan.target_step, plan.loads, plan.transfers) == (True, 4, (), ())
    assert job.core.record is not None
    assert job.core.record.resumption.redone == 1


def test_copies_come_before_a_checkpoint() -> None:
    job = saving(dict.fromkeys(range(4), 4), copies(2, of=range(4)))
    job.kill(3)
    plan = pause(job, [3])
    assert plan is not None
    assert (plan.saved, plan.target_step) == (False, 2)
    assert len(plan.loads) == 4


def test_a_checkpoint_that_only_the_dead_knew_of_is_the_scripts_own_affair() -> None:
    job = saving({3: 4})
    job.kill(3)
    assert job.at(Phase.RESTARTING)


def test_no_smaller_world_goes_back_to_a_checkpoint() -> None:
    job = Job(2, 2, (Strategy.ELASTIC_TRAINING, Strategy.EXIT))
    job.replicas = {rank: f"shard {rank}" for rank in range(4)}
    job.saved = dict.fromkeys(range(4), 4)
    job.up()
    job.kill(3)
    assert job.core.record is not None
    assert job.core.record.decision.restart


# ---- one rank of a node copies the state, the others their places


def shared(nodes: int, per_node: int, *steps: int) -> Job:
    """Return a job with equal ranks. The first rank of each node copies the state, the others their places."""
    job = Job(nodes, per_node, ALL)
    job.copies = {
        rank: tuple(StateCopy(of=JobRank(rank), step=step, place=rank % per_node != 0) for step in steps)
        for rank in range(nodes * per_node)
    }
    return job.up()


def test_who_has_loaded_a_copy_gives_it_to_the_ranks_of_its_node() -> None:
    job = shared(2, 3, 2, 4)
    for rank in range(6):
        job.kill(rank)
    plan = pause(job, range(6))
    assert plan is not None
    assert (plan.target_step, plan.copied) == (4, 4)
    assert loads(plan) == [(0, 0, 0), (3, 3, 3)]
    assert [(one.donor, one.receivers) for one in plan.transfers] == [(0, (1, 2)), (3, (4, 5))]


def test_a_step_at_which_a_rank_does_not_know_its_place_is_not_taken() -> None:
    job = shared(1, 3, 2, 4)
    assert job.copies is not None
    job.copies[2] = job.copies[2][:1]
    for rank in range(3):
        job.kill(rank)
    plan = pause(job, range(3))
    assert plan is not None
    assert (plan.target_step, plan.copied) == (2, 2)


def test_without_all_places_of_one_step_all_start_anew() -> None:
    job = shared(1, 2, 2, 4)
    assert job.copies is not None
    job.copies[0], job.copies[1] = job.copies[0][1:], job.copies[1][:1]
    for rank in range(2):
        job.kill(rank)
    assert pause(job, range(2)) is None
    assert job.at(Phase.RESTARTING)


def test_a_living_holder_comes_before_copies() -> None:
    job = shared(1, 3, 2, 4)
    job.kill(0)
    plan = pause(job, [0])
    assert plan is not None
    assert (plan.target_step, plan.loads) == (5, ())


@pytest.mark.parametrize(("own", "step"), [(Unshared.NOTHING, 5), (Unshared.SERVES, 4), (Unshared.ALONE, 4)])
def test_a_rank_that_has_lost_something_of_its_own_has_all_go_back(own: Unshared, step: int) -> None:
    held = {
        JobRank(rank): status(rank, condition=Condition.EMPTY if rank == 0 else Condition.CLEAN, own=own)
        for rank in range(2)
    }
    restore = plan_restore(held, dict.fromkeys(held, ""))
    assert restore is not None
    assert restore.target_step == step
    if own is not Unshared.NOTHING:
        assert sorted(restore.loads) == [(0, 0, 0), (1, 1, 1)]


def test_what_is_a_ranks_own_serves_no_other() -> None:
    """Rank 1 has no state of its own, and only rank 0 is left."""
    held = {
        JobRank(0): status(0, condition=Condition.CLEAN, own=Unshared.ALONE, copies=()),
        JobRank(1): status(1, condition=Condition.EMPTY, copies=()),
    }
    assert plan_restore(held, dict.fromkeys(held, "")) is None
    held[JobRank(0)] = replace(held[JobRank(0)], own=Unshared.SERVES)
    assert plan_restore(held, dict.fromkeys(held, "")) is not None


@pytest.mark.parametrize(("behind", "step"), [(-1, 5), (4, 5), (5, 4)])
def test_what_was_interrupted_behind_a_commit_is_done_again(behind: int, step: int) -> None:
    held = {
        JobRank(0): status(0, condition=Condition.CLEAN, behind=behind),
        JobRank(1): status(1, condition=Condition.EMPTY),
    }
    restore = plan_restore(held, dict.fromkeys(held, ""))
    assert restore is not None
    assert restore.target_step == step


def test_without_copies_it_is_left_out() -> None:
    held = {
        JobRank(0): status(0, condition=Condition.CLEAN, behind=5, copies=()),
        JobRank(1): status(1, condition=Condition.EMPTY, copies=()),
    }
    restore = plan_restore(held, dict.fromkeys(held, ""))
    assert restore is not None
    assert restore.target_step == 5


def status(rank: int, **said: Any) -> RankStatus:
    """Return the status of a paused rank at step 5, with copies of steps 2 and 4."""
    step = -1 if said["condition"] is Condition.EMPTY else 5
    known = {"copies": copies(2, 4, of=[rank]), **said}
    return RankStatus(
        rank=JobRank(rank), incarnation=1, generation=1, stage=Stage.PAUSED, step=step, pid=1, at_s=0.0, **known
    )


def test_ranks_outside_get_new_processes_that_go_on_from_copies() -> None:
    """A rank dies after the training function, where no process can be kept."""
    job = shared(1, 2, 2, 4)
    job.all(Stage.FINISHED, step=5)
    job.all(Stage.RELEASED, step=5)
    job.kill(1)
    job.wait(3.0)
    assert job.core.record is not None
    assert job.core.record.decision.renews
    plan = pause(job, [0, 1])
    assert plan is not None
    assert plan.target_step == 4
