"""Losses that follow each other closely: one fault, or the same fault again."""

from itertools import count

import pytest

from taskd.core.diagnosis.evidence import Evidence, RankPosition
from taskd.core.policy import Policy
from taskd.core.recovery import Action, Phase, Recovery
from taskd.core.recovery.budget import DEFAULT_MAX_RESTARTS
from taskd.wire.kinds import JobRank, NodeRank
from taskd.wire.messages import Condition, NodeStatus, Order, RankStatus, Stage
from tests.core.driver import DEADLINES, Job


def test_two_ranks_at_once_cost_one_restart() -> None:
    job = Job(max_restarts=1).up()
    job.kill(0)
    job.kill(1)
    assert not job.at(Phase.STOPPED)


def test_a_newcomer_that_dies_at_once_as_its_predecessor_did_is_a_repetition() -> None:
    """At the third time all restart, however quickly one follows the other."""
    job = Job().up()
    for _ in range(3):
        assert job.at(Phase.RUNNING) or job.at(Phase.PAUSING)
        job.kill(0)
        job.say(1, Stage.PAUSED, condition=Condition.CLEAN)
    assert job.at(Phase.RESTARTING)
    assert job.core.record is not None
    assert "rank 0 has failed 3 times at step 5" in job.core.record.decision.reason


def test_a_fault_strikes_where_its_evidence_says_though_the_agents_have_not_seen_that_step() -> None:
    """Steps of milliseconds: a rank dies between two inspections by its agent."""
    job = Job().up()
    for seen in (3, 4, 5):
        job.hear_evidence(0, {0: Evidence(position=RankPosition(step=7))}, asked=False)
        job.kill(0, step=seen)
        job.say(1, Stage.PAUSED, condition=Condition.CLEAN)
    assert job.core.record is not None
    assert "rank 0 has failed 3 times at step 7" in job.core.record.decision.reason


def test_a_script_that_fails_before_its_first_step_ends_the_job_at_the_third_time() -> None:
    recovery = Recovery(Policy(job_id="j", node_count=1, ranks_per_node=2))
    sequence = count()

    def hear(incarnations: dict[int, int], stages: dict[int, Stage], now_s: float) -> list[Action]:
        ranks = tuple(
            RankStatus(
                rank=JobRank(rank),
                incarnation=incarnations[rank],
                generation=recovery.world.generation,
                stage=stages[rank],
                cause="exit code 1" if stages[rank] is Stage.DEAD else "",
                status=1 if stages[rank] is Stage.DEAD else None,
                term=recovery.term if incarnations[rank] else 0,
            )
            for rank in (0, 1)
        )
        status = NodeStatus(
            job_id="j", node_rank=NodeRank(0), agent_id="a", sequence=next(sequence), node_count=1, ranks=ranks,
            store_host="h", store_port=1, standbys=0, max_restarts=DEFAULT_MAX_RESTARTS,
            generation=recovery.world.generation,
        )  # fmt: skip
        return recovery.hear(status, now_s)

    def wanted() -> dict[int, int]:
        return {rank: view.incarnation for rank, view in recovery.world.ranks.items()}

    starting = {0: Stage.STARTING, 1: Stage.STARTING}
    hear({0: 0, 1: 0}, starting, 0.0)
    for time, culprit in enumerate((0, 1, 0)):
        assert recovery.directive is not None
        assert recovery.directive.exit_code == 0, time
        hear(wanted(), {**starting, culprit: Stage.DEAD}, 10.0 * time + 5)
        recovery.tick(10.0 * time + 6)
        hear(wanted(), starting, 10.0 * time + 7)
    assert recovery.phase is Phase.STOPPED
    assert recovery.directive is not None
    assert "3 processes failed before any step was committed" in recovery.directive.reason


def starting_job(ranks: int, max_restarts: int = DEFAULT_MAX_RESTARTS) -> Job:
    job = Job(per_node=ranks, max_restarts=max_restarts)
    job.send(0)
    return job


def test_an_error_that_strikes_every_rank_at_the_start_ends_the_job_at_once() -> None:
    job = starting_job(3)
    for rank in range(3):
        assert not job.at(Phase.STOPPED)
        job.kill(rank, cause="exit code 1: ValueError: batch size -1", step=-1)
    assert job.at(Phase.STOPPED)
    assert "3 processes failed before any step was committed" in job.stopped.reason
    assert "ValueError: batch size -1" in job.stopped.reason


@pytest.mark.parametrize(
    ("causes", "kind"),
    [
        (["exit code 1: ValueError: batch size -1"] * 2, ""),  # the third rank's start was no failure
        (["exit code 1"] * 3, ""),  # no error was raised: it may have asked for a restart
        (["exit code 1: RuntimeError: Connection reset by peer"] * 3, "retry"),
        (["exit code 1: OSError: a flaky disk", *["exit code 1: RuntimeError: nobody answers"] * 3], ""),
        (["signal 9 (SIGKILL)"] * 3, ""),
    ],
)
def test_a_start_that_may_have_failed_by_chance_is_tried_again(causes: list[str], kind: str) -> None:
    job = starting_job(max(3, len(causes)))
    for rank, cause in enumerate(causes):
        job.kill(rank, cause=cause, step=-1, kind=kind)
    job.wait(DEADLINES.merge_s)
    assert job.order is Order.RUN
    assert min(job.incarnations) > 0


def test_the_third_flaky_start_ends_the_job() -> None:
    job = starting_job(2)
    for attempt in range(3):
        assert not job.at(Phase.STOPPED), attempt
        for rank in range(2):
            job.say(rank, Stage.STARTING, step=-1)
        job.kill(attempt % 2, cause="exit code 1: OSError: no such host", step=-1)
        job.wait(DEADLINES.merge_s)
    assert job.at(Phase.STOPPED)


def test_starts_may_fail_as_often_as_a_number_of_restarts_that_was_given_allows() -> None:
    """As under torchrun: a resource that every rank lacks, such as a mount or a server, may appear later."""
    job = starting_job(3, max_restarts=5)
    for start in range(6):
        assert not job.at(Phase.STOPPED), start
        for rank in range(3):
            job.say(rank, Stage.STARTING, step=-1)
        for rank in range(3):
            job.kill(rank, cause="exit code 1: FileNotFoundError: /data", step=-1)
        job.wait(DEADLINES.merge_s)
    assert job.at(Phase.STOPPED)
    assert "all 5 restarts of the job are spent" in job.stopped.reason


def test_two_newcomers_that_die_at_once_cost_one_restart() -> None:
    """Their predecessors also died, one restart before."""
    job = Job(max_restarts=2).up()
    for _ in range(2):
        job.kill(0)
        job.kill(1)
    assert not job.at(Phase.STOPPED)
    job.kill(0)
    assert job.at(Phase.STOPPED)
