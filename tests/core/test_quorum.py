"""Number of nodes that must report to decide about the others, waiting until they do, and two managers."""

from typing import Any

import pytest
from msgspec.structs import replace

from taskd.core.membership.health import quorum
from taskd.core.policy import Strategy
from taskd.core.recovery import AskCluster, Phase, Publish, Superseded
from taskd.core.recovery.orders import send
from taskd.wire.kinds import JobRank, NodeRank
from taskd.wire.messages import Ledger, NodeStatus, Order, RankStatus, Stage
from tests.core.driver import Job


@pytest.mark.parametrize(
    ("members", "heard", "replaced", "first_heard", "enough"),
    [
        (4, 3, 0, False, True),
        (4, 2, 0, True, True),
        (4, 2, 0, False, False),
        (4, 2, 1, False, False),
        (4, 1, 3, False, True),
        (3, 1, 0, True, False),
        (3, 1, 1, True, False),
        (3, 1, 2, False, True),
        (2, 1, 0, False, False),
        (2, 1, 1, False, True),
        (2, 0, 5, False, False),  # the world may be whole on the other side
        (1, 0, 1, False, False),
        (0, 0, 1, True, True),
    ],
)
def test_more_than_half_decide(members: int, heard: int, replaced: int, first_heard: bool, enough: bool) -> None:
    assert quorum(members, heard, replaced, first_heard=first_heard) is enough


def four(**more: Any) -> Job:
    return Job(nodes=4, per_node=1, **more).up()


def test_the_half_with_the_first_node_goes_on() -> None:
    job = four()
    job.silence(2, 3)
    assert (job.phase, job.core.world.vacant) == (Phase.PAUSING, (2, 3))


def test_the_half_without_the_first_node_decides_nothing_and_says_why_it_ends() -> None:
    job = four(wait_node_s=60.0)
    sequence = job.core.job.orders.sequence
    job.silence(0, 1)
    job.wait(40.0)
    assert (job.phase, job.core.job.orders.sequence, job.core.job.absence.held) == (Phase.RUNNING, sequence, {0, 1})
    assert job.did(AskCluster) == []
    job.wait(60.0)
    assert job.stopped.reason == "node 0 is lost, and for 60 s too few others are heard"


def test_whoever_is_heard_again_before_anything_was_decided_was_not_lost() -> None:
    job = four()
    job.silence(0, 1)
    job.silent.clear()
    job.wait(0.1)
    job.wait(1.0)
    assert (job.phase, job.core.job.absence.held, job.generation) == (Phase.RUNNING, set(), 0)


def test_with_a_newcomer_the_half_without_the_first_node_goes_on() -> None:
    job = Job(nodes=2, per_node=1).up()
    job.silence(0)
    assert job.at(Phase.RUNNING)
    job.spare("newcomer", wants=0)
    job.wait(0.1)
    job.wait(0.7)
    assert (job.phase, job.holder(0)) == (Phase.PAUSING, "newcomer")


@pytest.mark.parametrize("known", ["waits", "wants another", "asked for"])
def test_a_newcomer_that_is_no_replacement_has_no_voice(known: str) -> None:
    job = Job(nodes=2, per_node=1).up()
    if known == "waits":
        job.spare("newcomer", wants=0)
        job.wait(0.5)
    job.core.world.nodes.wanted = {NodeRank(0)} if known == "asked for" else set()
    job.silence(0)
    job.spare("newcomer", wants=1 if known == "wants another" else 0)
    job.wait(0.1)
    job.wait(0.7)
    assert (job.phase, job.holder(0)) == (Phase.RUNNING, "agent 0")


def test_a_world_comes_about_only_when_most_of_the_last_one_know_of_it() -> None:
    job = Job(nodes=5, per_node=1, allowed=(Strategy.ELASTIC_TRAINING, Strategy.EXIT)).up()
    job.silence(4)
    for rank in (2, 3):
        job.kill(rank)
    job.spares |= {"agent 2": -1, "agent 3": -1}
    job.silent |= {"agent 2", "agent 3"}
    for rank in (0, 1):
        job.say(rank, Stage.PAUSED)
    assert (job.members, job.order) == ([0, 1], Order.PAUSE)  # two of the last five: a second manager may have three
    job.silent -= {"agent 2"}
    job.wait(0.1)
    assert job.order is Order.JOIN
    assert [place.agent_id for place in job.directive.ledger.agreed] == [f"agent {place}" for place in range(5)]
    job.recovered()
    assert [place.agent_id for place in job.directive.ledger.agreed] == ["agent 0", "agent 1"]


def test_a_world_of_which_too_few_ever_know_is_given_up() -> None:
    job = Job(nodes=5, per_node=1, wait_node_s=60.0, allowed=(Strategy.ELASTIC_TRAINING, Strategy.EXIT)).up()
    job.silence(4)
    for rank in (2, 3):
        job.kill(rank)
    job.silent |= {"agent 2", "agent 3"}
    for rank in (0, 1):
        job.say(rank, Stage.PAUSED)
    for _ in range(8):
        job.wait(9.0)
    assert "too few others are heard" in job.stopped.reason


def test_a_manager_that_takes_over_does_not_believe_a_node_that_was_displaced() -> None:
    job = four()
    first = job.ledger
    job.spare()
    job.silence(1)
    job.paused(newcomers=(1,)).recovered()
    after = successor(job)
    old = RankStatus(rank=JobRank(1), incarnation=0, generation=0, stage=Stage.PAUSED)
    after.hear(replace(after._report("agent 1", 1, (old,), leaving=False), generation=0, ledger=first))
    for node in (0, 2, 3):
        after.send(node)
    after.wait(4.0)
    assert (after.phase, after.holder(1)) == (Phase.PAUSING, "agent 1")  # it may help, but with a new process
    assert after.core.world.ranks[JobRank(1)].incarnation > 1


def test_a_manager_that_takes_over_does_not_believe_a_node_that_the_newest_world_is_without() -> None:
    job = four(wait_node_s=20.0)
    first = job.ledger
    job.silence(3)
    for rank in (0, 1, 2):
        job.say(rank, Stage.PAUSED)
    job.wait(21.0)
    job.paused(newcomers=())  # the world of three is being built: the last complete one had four
    after = successor(job)
    old = RankStatus(rank=JobRank(3), incarnation=0, generation=0, stage=Stage.PAUSED)
    after.hear(replace(after._report("agent 3", 3, (old,), leaving=False), generation=0, ledger=first))
    for node in range(3):
        after.send(node)
    assert after.directive.ledger.places == (0, 1, 2)


def test_a_node_that_leaves_while_a_new_manager_takes_over_is_lost_and_the_others_go_on() -> None:
    after = successor(four())
    after.send(3, leaving=True)
    after.silent.add("agent 3")
    assert after.at(Phase.FORMING)
    for node in range(3):
        after.send(node)
    after.wait(4.0)
    assert (after.phase, after.core.world.vacant) == (Phase.PAUSING, (3,))


def test_a_manager_that_hears_nobody_of_the_world_gives_its_places_to_nobody() -> None:
    job = four()
    for name in ("a", "b", "c"):
        job.spare(name)
    job.silence(0, 1, 2, 3)
    job.wait(5.0)
    assert job.core.job.absence.held == {0, 1, 2, 3}
    assert [job.holder(place) for place in range(4)] == [f"agent {place}" for place in range(4)]


def test_a_process_that_is_lost_while_too_few_are_heard_waits_for_the_decision() -> None:
    job = Job(nodes=4, per_node=1, allowed=(Strategy.RECOVER_IN_PLACE, Strategy.ELASTIC_TRAINING)).up()
    job.silence(0, 1)
    job.kill(2)
    assert (job.phase, job.members) == (Phase.AWAITING_QUORUM, [0, 1, 2, 3])
    assert job.core.record is not None
    assert job.core.record.decision.reason == "too few nodes are heard to go on without the others"
    job.silent.clear()
    job.wait(0.1)
    job.wait(1.0)
    assert (job.core.record.decision.strategy, job.incarnations) == (Strategy.RECOVER_IN_PLACE, [0, 0, 1, 0])


def test_a_node_that_has_said_that_it_leaves_is_not_waited_for() -> None:
    job = Job(nodes=2, per_node=1, allowed=(Strategy.ELASTIC_TRAINING,)).up()
    job.send(0, leaving=True)
    assert (job.phase, job.members) == (Phase.PAUSING, [1])


# ---- one manager after another


def successor(job: Job) -> Job:
    """Return a new manager of the same job. The same agents report to it."""
    after = Job(nodes=job.nodes, per_node=job.per_node, sequence=5000)
    after.statuses, after.ledger, after.silent = dict(job.statuses), job.ledger, set(job.silent)
    after._sequence, after.now_s = 1000, job.now_s
    return after


def test_a_new_manager_goes_on_with_what_the_agents_carry() -> None:
    job = four()
    job.kill(1)
    job.paused(newcomers=(1,)).recovered()
    job.core.world.nodes.excluded.add("bad")
    send(job.core.job, job.now_s, Order.RUN)
    job._take(job.core._flush(job.now_s))
    after = successor(job)
    for node in range(4):
        after.send(node)
    assert (after.phase, after.generation, after.incarnations) == (Phase.RUNNING, 1, [0, 1, 0, 0])
    assert (after.core.term, after.directive.ledger.term) == (5001, 5001)
    assert after.core.job.budget is not None
    assert after.core.job.budget.spent == 1
    assert after.directive.ledger.excluded == ("bad",)


def test_a_node_that_a_new_manager_does_not_hear_is_recovered() -> None:
    job = four()
    after = successor(job)
    after.silent = {"agent 0"}
    after.wait(0.0)
    after.wait(2.0)
    assert after.at(Phase.FORMING)
    after.wait(1.5)
    assert (after.phase, after.core.world.vacant) == (Phase.PAUSING, (0,))


def test_a_new_manager_that_hears_too_few_takes_over_nothing() -> None:
    job = four()
    after = successor(job)
    after.silent = {"agent 0", "agent 1", "agent 2"}
    after.wait(0.0)
    after.wait(200.0)
    assert after.at(Phase.FORMING)
    after.wait(100.0)
    assert "too few others are heard to take over the job" in after.stopped.reason


def test_a_newcomer_that_started_processes_of_its_own_becomes_a_candidate() -> None:
    job = four()
    job.kill(1)
    job.paused(newcomers=(1,)).recovered()
    after = successor(job)
    own = RankStatus(rank=JobRank(0), incarnation=0, generation=0, stage=Stage.STARTING)
    fresh = NodeStatus(
        job_id="job", node_rank=NodeRank(0), agent_id="new", sequence=1, node_count=4, ranks=(own,),
        store_host="n", store_port=1, standbys=0, max_restarts=3, generation=0, wants=NodeRank(0),
    )  # fmt: skip
    after.hear(fresh)
    after.silent = {"agent 0", "new"}
    for _ in range(8):
        after.wait(0.5)
    assert (after.phase, after.holder(0)) == (Phase.PAUSING, "new")
    assert after.directive.ranks[0].incarnation > 1  # the processes that it started are not wanted
    record = after.core.record
    assert record is not None
    assert (record.decision.strategy, set(record.causes)) == (Strategy.RECOVER, {0})


def test_places_that_are_absent_stay_absent_under_a_new_manager() -> None:
    job = four(wait_node_s=20.0)
    job.silence(3)
    for rank in (0, 1, 2):
        job.say(rank, Stage.PAUSED)
    job.wait(21.0)
    job.paused(newcomers=()).recovered()
    after = successor(job)
    for node in range(3):
        after.send(node)
    assert (after.phase, after.members, after.directive.ledger.places) == (Phase.RUNNING, [0, 1, 2], (0, 1, 2))


def test_of_two_claims_of_a_place_that_of_the_newer_world_counts() -> None:
    job = four()
    job.spare()
    job.silence(1)
    job.paused(newcomers=(1,)).recovered()
    after = successor(job)
    after.hear(
        after._report(
            "agent 1", 1, (RankStatus(rank=JobRank(1), incarnation=0, generation=0, stage=Stage.PAUSED),), leaving=False
        )
    )
    after.core.world.nodes.by_place[NodeRank(1)].status = _older(after.core.world.nodes.by_place[NodeRank(1)].status)
    after.hear(after._report("spare", 1, (after.statuses[1],), leaving=False))
    for node in (0, 2, 3):
        after.send(node)
    assert (after.phase, after.holder(1)) == (Phase.RUNNING, "spare")


def _older(status: NodeStatus) -> NodeStatus:
    return type(status)(**{name: getattr(status, name) for name in status.__struct_fields__} | {"generation": 0})


def test_a_manager_that_hears_of_a_newer_one_decides_nothing_any_more() -> None:
    job = four()
    job.ledger = Ledger(term=99)
    actions = job.send(0)
    assert actions == [Superseded(99)]
    assert job.send(1) == []
    job.now_s += 300.0
    assert job.core.tick(job.now_s) == []
    assert job.core.answered("agent 2", listening=False, now_s=job.now_s) == []


def test_a_window_of_restarts_reaches_the_budget() -> None:
    job = Job(max_restarts=1, window_s=60.0).up()
    job.kill(1)
    job.paused(newcomers=(1,)).recovered()
    job.wait(61.0)
    job.kill(1)
    assert not job.at(Phase.STOPPED)


def test_the_first_directive_only_tells_that_the_job_forms() -> None:
    job = Job(nodes=2)
    (form,) = [action for action in job.send(0) if isinstance(action, Publish)]
    assert form.directive.order is Order.FORM
    assert job.send(0) == []
    assert job.order is Order.FORM
