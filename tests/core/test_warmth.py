"""A warm process whose set-up fails is followed by a cold one, for the same restart."""

from itertools import product

import pytest

from taskd.core.diagnosis.faults import FaultKind
from taskd.core.policy import Strategy
from taskd.core.recovery import Note, Phase, Setback
from taskd.core.recovery.warmth import TABLE, SetUpFailure, Warmth
from taskd.wire.kinds import JobRank, NodeRank
from taskd.wire.messages import Ledger, Order, Stage
from tests.core.driver import Job

ERROR = "exit code 1 at train.py:12 (ImportError): found no device"
OTHER = "exit code 1 at train.py:40 (RuntimeError): found 1 of 2 ranks"


def fall(job: Job, rank: int, cause: str = ERROR, *, warm: bool = True) -> None:
    """Start the newest process of the rank, and let it end in its set-up."""
    job.say(rank, Stage.STARTING, step=-1, warm=warm)
    job.kill(rank, cause, step=-1, warm=warm)


def pausing() -> Job:
    """Return a job whose rank 0 was killed; rank 1 waits for the new process. The only restart allowed is spent."""
    job = Job(max_restarts=1).up()
    job.kill(0)
    job.say(1, Stage.PAUSED)
    assert (job.phase, spent(job), job.directive.ledger.cold) == (Phase.PAUSING, 1, False)
    return job


def spent(job: Job) -> int:
    assert job.core.job.budget is not None
    return job.core.job.budget.spent


def warnings(job: Job) -> list[str]:
    return [note.text for note in job.did(Note) if note.warns]


def restarted() -> Job:
    """Return a job that has restarted all processes, some of them warm. One of two restarts is spent."""
    job = Job(max_restarts=2, allowed=(Strategy.RECOVER_IN_PLACE,)).up()
    job.all(Stage.RELEASED)
    job.kill(0, "exit code 7", step=5)
    assert job.at(Phase.RESTARTING)
    job.say(0, Stage.STARTING, step=-1, warm=True)
    job.say(1, Stage.STARTING, step=-1)
    assert (job.phase, spent(job)) == (Phase.RUNNING, 1)
    return job


def test_every_pair_is_in_the_table() -> None:
    assert TABLE.keys() == set(product(Warmth, SetUpFailure))


@pytest.mark.parametrize("cause", [ERROR, "exit code 3", "signal 6 (SIGABRT): abort() was called"])
def test_a_cold_start_of_that_rank_follows(cause: str) -> None:
    """The others keep waiting, no further restart is charged, and one sentence reports it."""
    job = pausing()
    fall(job, 0, cause)
    assert (job.phase, job.order, job.incarnations, spent(job)) == (Phase.PAUSING, Order.PAUSE, [2, 0], 1)
    assert job.directive.ledger.cold
    assert [order.joins for order in job.directive.ranks] == [True, False]
    sentence = (
        f"rank 0's warm process failed in its set-up ({cause}): a cold one takes its place, for the same restart; all "
        "processes of this job start cold from now on, as with TASKD_STANDBY=0"
    )
    assert [action.text for action in job.did(Setback)] == [sentence]
    job.paused().recovered()
    (success,) = job.successes
    assert (success.record.decision.restart, success.record.setbacks) == (False, [sentence])
    assert success.record.causes[JobRank(0)].text == "signal 9 (SIGKILL)", "what the fault is does not change"
    job.kill(1, step=6)
    assert job.directive.ledger.cold, "to the end of the job"


def test_two_warm_ones_that_fail_alike_are_both_followed() -> None:
    job = Job(per_node=3, max_restarts=1).up()
    job.kill(0)
    job.kill(1)
    job.say(2, Stage.PAUSED)
    fall(job, 0)
    fall(job, 1)
    assert (job.phase, job.incarnations, spent(job)) == (Phase.PAUSING, [2, 2, 0], 1)


def test_on_the_node_to_which_it_has_moved_no_other_node_is_needed() -> None:
    """The only spare node is taken by now. This is no reason to restart all processes."""
    job = Job(nodes=2, per_node=1, max_restarts=1, allowed=(Strategy.RECOVER, Strategy.EXIT)).up()
    job.spare()
    job.kill(0)
    job.say(1, Stage.PAUSED)
    assert job.holder(0) == "spare"
    fall(job, 0)
    assert (job.phase, job.incarnations, spent(job), job.holder(0)) == (Phase.PAUSING, [2, 0], 1, "spare")


def test_if_the_cold_one_fails_too_all_start_anew_and_may_be_warm() -> None:
    """It failed for the same reason, so warmth was not to blame, and is not blamed for later failures."""
    job = pausing()
    fall(job, 0)
    fall(job, 0, warm=False)
    assert (job.phase, job.incarnations, spent(job)) == (Phase.RESTARTING, [3, 1], 1)
    assert not job.directive.ledger.cold
    assert warnings(job) == ["rank 0's cold process failed as the warm one: warm ones are used again"]
    job.all(Stage.TRAINING, step=0)
    job.all(Stage.COMMITTED, step=6)
    job.kill(0, step=6)
    assert "restarts of the job are spent" in job.stopped.reason


def test_an_agent_that_does_not_know_of_it_is_not_asked_again_and_again() -> None:
    job = pausing()
    fall(job, 0)
    fall(job, 0)
    assert (job.phase, job.incarnations, spent(job)) == (Phase.RESTARTING, [3, 1], 1)


def test_a_cold_one_that_fails_of_something_else_clears_nothing() -> None:
    job = pausing()
    fall(job, 0)
    fall(job, 0, OTHER, warm=False)
    assert (job.phase, job.directive.ledger.cold) == (Phase.RESTARTING, True)


@pytest.mark.parametrize("warm", [True, False])
def test_what_was_killed_or_had_come_further_is_a_loss_like_any(warm: bool) -> None:
    job = pausing()
    fall(job, 0, "signal 9 (SIGKILL)", warm=warm)
    assert not job.directive.ledger.cold
    job = pausing()
    job.say(0, Stage.PAUSED, step=-1, warm=warm)
    job.kill(0, ERROR, step=-1, warm=warm)
    assert (job.phase, job.directive.ledger.cold) == (Phase.RESTARTING, False)


def test_after_a_start_of_all_a_warm_one_that_fails_costs_no_restart() -> None:
    """This holds for any number of them: all restart once more, cold. A failure then is charged and clears warmth."""
    job = restarted()
    job.kill(0, ERROR, step=-1, warm=True)
    assert (job.phase, spent(job), job.directive.ledger.cold) == (Phase.RESTARTING, 1, True)
    (told,) = warnings(job)
    assert told.startswith(f"rank 0's warm process failed in its set-up ({ERROR}): no restart is spent; all processes")
    job.all(Stage.STARTING, step=-1)
    job.kill(0, ERROR, step=-1)
    job.wait(5.0)
    assert (job.phase, spent(job), job.directive.ledger.cold) == (Phase.RESTARTING, 2, False)


def test_a_warm_one_that_ends_later_is_a_loss_like_any() -> None:
    """Without the SDK, the whole script counts as set-up."""
    job = restarted()
    job.wait(61.0)
    job.kill(0, ERROR, step=-1, warm=True)
    assert (job.phase, spent(job), job.directive.ledger.cold) == (Phase.RESTARTING, 2, False)


def test_a_new_manager_keeps_to_it() -> None:
    job = Job(sequence=1000)
    job.ledger = Ledger(term=7, places=(NodeRank(0),), cold=True)
    job.send(0)
    assert job.directive.ledger.cold


def test_while_all_start_a_warm_one_that_fails_at_once_has_all_start_cold() -> None:
    """A process that has waited in vain for the others is an exception."""
    for waited_s, cold in ((1.0, True), (61.0, False)):
        job = Job(nodes=2, per_node=1, max_restarts=2, wait_node_s=600.0).up()
        job.all(Stage.RELEASED)
        job.kill(0, "exit code 7", step=5)
        assert job.at(Phase.RESTARTING)
        job.say(0, Stage.STARTING, step=-1, warm=True)
        job.now_s += waited_s
        job.kill(0, ERROR, step=-1, warm=True)
        assert (job.phase, job.incarnations, job.directive.ledger.cold) == (Phase.RESTARTING, [2, 2], cold)
        assert spent(job) == (1 if cold else 2)


def test_a_warm_one_that_says_that_its_node_is_at_fault_was_not_too_warm() -> None:
    job = pausing()
    job.say(0, Stage.STARTING, step=-1, warm=True)
    job.kill(0, ERROR, step=-1, warm=True, kind=FaultKind.NODE.value)
    assert not job.directive.ledger.cold
