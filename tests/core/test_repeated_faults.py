"""What is one fault and what is the same fault again, when losses follow each other closely."""

from itertools import count

from taskd.core.policy import Policy
from taskd.core.recovery import Action, Phase, Recovery
from taskd.wire.messages import Condition, NodeStatus, RankStatus, Stage
from tests.core.driver import Job


def test_two_ranks_at_once_cost_one_restart() -> None:
    job = Job(max_restarts=1).up()
    job.kill(0)
    job.kill(1)
    assert not job.at(Phase.STOPPED)


def test_a_newcomer_that_fails_at_once_as_its_predecessor_did_is_a_repetition() -> None:
    """The third time ends the job, however quickly one follows the other."""
    job = Job().up()
    for attempt in range(3):
        assert not job.at(Phase.STOPPED), attempt
        job.kill(0, cause="exit code 1")
        job.say(1, Stage.PAUSED, condition=Condition.CLEAN)
    assert job.at(Phase.STOPPED)
    assert "failed 3 times at step 5" in job.stopped.reason


def test_a_script_that_fails_before_its_first_step_ends_the_job_at_the_third_time() -> None:
    recovery = Recovery(Policy(job_id="j", node_count=1, ranks_per_node=2))
    sequence = count()

    def hear(incarnations: dict[int, int], stages: dict[int, Stage], now_s: float) -> list[Action]:
        ranks = tuple(
            RankStatus(
                rank=rank,
                incarnation=incarnations[rank],
                generation=recovery.world.generation,
                stage=stages[rank],
                cause="exit code 1" if stages[rank] is Stage.DEAD else "",
            )
            for rank in (0, 1)
        )
        status = NodeStatus(
            job_id="j", node_rank=0, agent_id="a", sequence=next(sequence), node_count=1, ranks=ranks, store_host="h",
            store_port=1, standbys=0, max_restarts=100, generation=recovery.world.generation,
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
        hear(wanted(), starting, 10.0 * time + 6)
    assert recovery.phase is Phase.STOPPED
    assert recovery.directive is not None
    assert "failed 3 times before any step was committed" in recovery.directive.reason
