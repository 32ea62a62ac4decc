"""What is one fault and what is the same fault again, when losses follow each other closely."""

from taskd.core.recovery import Phase
from taskd.wire.messages import Condition, Stage
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
