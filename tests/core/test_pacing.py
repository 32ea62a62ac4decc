"""The manager's use of the pace of its ranks: which ranks it reports, and whose node leaves."""

import pytest

from taskd.core.diagnosis.findings import Kind
from taskd.core.policy import Strategy
from taskd.core.recovery import Note, Phase
from taskd.wire.kinds import JobRank
from taskd.wire.messages import Order
from tests.core.driver import STEP_S, Job

USUAL_S = 0.6 * STEP_S


def even(**more: object) -> Job:
    """Return a job of two nodes with two ranks each, which have trained for a while, all equally fast."""
    job = Job(nodes=2, per_node=2, **more).up()  # type: ignore[arg-type]
    job.owns_s = dict.fromkeys(range(4), USUAL_S)
    return job.train(60)


def slowed(job: Job, *ranks: int, by: float = 1.3, steps: int = 40) -> Job:
    job.owns_s.update(dict.fromkeys(ranks, by * USUAL_S))
    return job.train(steps)


def test_a_slow_rank_is_told_once() -> None:
    job = slowed(even(), 2, steps=100)
    (told,) = job.diagnoses
    assert (told.diagnosis.kind, told.diagnosis.culprits, told.reported) == (Kind.SLOW, (2,), True)
    assert "Rank 2 needs 0.078 s of its own" in told.diagnosis.sentence
    assert "It is on node 1." in told.diagnosis.sentence
    slow, usual = (told.evidence[JobRank(rank)].pace for rank in (2, 0))
    assert slow is not None
    assert slow.own_s == pytest.approx(0.078)
    assert usual is not None
    assert usual.own_s == pytest.approx(USUAL_S)
    assert job.at(Phase.RUNNING)


def test_ranks_that_are_slow_together_are_a_node() -> None:
    job = slowed(even(), 2, 3)
    assert [(told.diagnosis.kind, told.diagnosis.culprits) for told in job.diagnoses] == [(Kind.SLOW_NODE, (2, 3))]


def test_what_costs_the_job_nothing_is_not_told() -> None:
    job = Job(nodes=2, per_node=2).up()
    job.owns_s = dict.fromkeys(range(4), 0.1 * STEP_S)
    job.train(60)
    job.owns_s[2] = 0.13 * STEP_S  # 30 % longer, and 3 % of a step
    assert job.train(100).diagnoses == []


@pytest.mark.parametrize(("by", "told"), [(1.3, 0), (1.6, 1)])
def test_where_ranks_share_cores_only_what_is_far_slower_is_told(by: float, told: int) -> None:
    job = Job(nodes=2, per_node=2).up()
    job.cores = 1
    job.owns_s = dict.fromkeys(range(4), USUAL_S)
    assert len(slowed(job.train(60), 2, by=by).diagnoses) == told


def test_a_slow_node_gives_its_place_to_a_spare_if_the_job_wants_it() -> None:
    job = even(recover_slow=True)
    job.spare("fresh")
    slowed(job, 2, 3)
    assert job.at(Phase.REARRANGING)
    assert job.order is Order.PAUSE
    assert job.core.record is not None
    assert job.core.record.decision.strategy is Strategy.RECOVER
    assert {cause.text for cause in job.core.record.causes.values()} == {"node 1 is slower than the others"}
    job.paused(())
    assert job.holder(1) == "fresh"
    assert job.core.world.nodes.excluded == {"agent 1"}


def test_without_a_spare_it_stays_until_one_comes() -> None:
    job = slowed(even(recover_slow=True), 2, 3, steps=60)
    assert job.at(Phase.RUNNING)
    notes = [action.text for action in job.actions if isinstance(action, Note)]
    assert [text for text in notes if "no node leaves" in text] == [
        "no node leaves for being slow: 0 spares wait, and 1 would have to take a place"
    ]
    job.spare("fresh")
    job.train(20)
    assert job.at(Phase.REARRANGING)


def test_a_node_that_is_well_again_stays() -> None:
    job = slowed(even(recover_slow=True), 2, 3, steps=60)
    slowed(job, 2, 3, by=1.0, steps=200)
    job.spare("fresh")
    job.train(20)
    assert job.at(Phase.RUNNING)


def test_without_the_jobs_word_nobody_leaves() -> None:
    job = even()
    job.spare("fresh")
    slowed(job, 2, 3, steps=100)
    assert len(job.diagnoses) == 1
    assert job.at(Phase.RUNNING)


def test_a_new_world_is_learned_anew() -> None:
    job = slowed(even(), 2)
    assert len(job.diagnoses) == 1
    job.kill(0)
    job.paused((0,)).recovered()
    told = len(job.diagnoses)
    job.train(15)
    assert len(job.diagnoses) == told, "nothing is known of the new processes yet"
    job.train(100)
    assert [one.diagnosis.culprits for one in job.diagnoses[told:]] == [(2,)], "the old world is forgotten"


def test_a_stage_of_the_pipeline_that_has_more_to_do_accuses_nobody() -> None:
    job = Job(nodes=2, per_node=2, pipeline_stages=2).up()
    job.owns_s = {0: USUAL_S, 1: USUAL_S, 2: 1.3 * USUAL_S, 3: 1.3 * USUAL_S}
    job.train(150)
    assert [(told.diagnosis.kind, told.diagnosis.culprits) for told in job.diagnoses] == [(Kind.UNEVEN, ())]
    assert "the pipeline is divided unequally" in job.diagnoses[0].diagnosis.sentence
