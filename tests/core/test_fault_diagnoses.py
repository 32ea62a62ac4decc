"""Faults that kill or disturb a rank: the reported diagnosis, its time, and changes by later evidence."""

from dataclasses import replace

import pytest

from taskd.core.diagnosis.evidence import Evidence, PythonError, RunState
from taskd.core.diagnosis.findings import Kind
from taskd.core.recovery import Phase
from taskd.wire.kinds import JobRank
from taskd.wire.messages import Order, Stage
from tests.core.driver import Job
from tests.core.scenarios import FAULTS, base, but
from tests.core.test_hang_probes import STEP_S, standing, trained


def test_a_death_is_recovered_from_at_once_and_explained_when_the_evidence_comes() -> None:
    job = Job(per_node=4).up()
    job.kill(2)
    assert job.at(Phase.PAUSING)
    assert job.diagnoses == []
    job.hear_evidence(0, {2: FAULTS["SIGKILL"].evidence()[2]}, asked=False)
    (told,) = job.diagnoses
    assert (told.diagnosis.kind, told.diagnosis.culprits, told.fault) == (Kind.KILLED, (2,), 1)
    job.hear_evidence(0, {2: FAULTS["SIGKILL"].evidence()[2]}, asked=False)
    assert len(job.diagnoses) == 1
    job.paused((2,)).recovered()
    assert job.successes[-1].record.diagnosis == told.diagnosis


def test_a_diagnosis_that_changes_is_told_again_under_the_same_number() -> None:
    job = Job(per_node=4).up()
    job.kill(2)
    dead = FAULTS["SIGKILL"].evidence((1, 2))
    job.hear_evidence(0, {2: dead[2]}, asked=False)
    job.kill(1)
    job.hear_evidence(0, {1: dead[1]}, asked=False)
    assert [(told.fault, told.diagnosis.culprits) for told in job.diagnoses] == [(1, (2,)), (1, (1, 2))]


def test_a_fault_that_ends_the_job_is_explained_too() -> None:
    job = Job(per_node=4, max_restarts=0).up()
    job.kill(2)
    assert job.at(Phase.STOPPED)
    job.hear_evidence(0, {2: FAULTS["SIGKILL"].evidence()[2]}, asked=False)
    (told,) = job.diagnoses
    assert told.reported
    job.hear_evidence(0, {1: FAULTS["SIGKILL"].evidence((1,))[1]}, asked=False)
    assert len(job.diagnoses) == 1  # the launcher ends the others


def test_a_rank_that_left_too_early_explains_at_once_why_others_strayed() -> None:
    job = Job(per_node=4).up()
    job.say(2, Stage.EXITED)
    assert job.at(Phase.RUNNING)
    job.say(1, Stage.PAUSED, cause="RuntimeError: Connection closed by peer")
    assert job.at(Phase.PAUSING)
    assert job.incarnations == [0, 0, 1, 0]


def test_the_same_if_the_others_stray_first() -> None:
    job = Job(per_node=4).up()
    job.say(1, Stage.PAUSED, cause="RuntimeError: Connection closed by peer")
    assert job.at(Phase.STRAYED)
    job.say(2, Stage.EXITED)
    assert job.at(Phase.PAUSING)
    assert job.incarnations == [0, 0, 1, 0]


def test_ranks_that_strayed_are_asked_and_whoever_made_another_call_is_replaced() -> None:
    job = Job(per_node=4).up()
    job.say(1, Stage.PAUSED, cause="RuntimeError: op.preamble.nbytes")
    probe = job.directive.probe
    job.wait(0.15)
    assert job.directive.probe > probe
    job.hear_evidence(0, FAULTS["sends another size, gloo raises"].evidence((2,), 4))
    assert job.at(Phase.PAUSING)
    assert job.incarnations == [0, 0, 1, 0]
    assert job.diagnoses[-1].diagnosis.kind is Kind.SIZE_MISMATCH


def test_where_the_answers_explain_nothing_the_news_of_a_loss_is_waited_for() -> None:
    job = Job(per_node=4).up()
    job.say(1, Stage.PAUSED, cause="RuntimeError: Connection closed by peer")
    job.wait(0.15)
    job.hear_evidence(0, {rank: base(rank, 4) for rank in range(4)})
    assert job.at(Phase.STRAYED)
    job.wait(2.0)
    assert job.at(Phase.PAUSING)
    assert job.incarnations == [0, 0, 0, 0]


def dying(kind: str, message: str, rank: int = 2, step: int = 255) -> dict[int, Evidence]:
    """Return the evidence of a rank that lives and has reported its fatal error."""
    return {rank: but(base(rank, 4), step=step, error=PythonError(kind, message, "train.py:9 in f"))}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (("KeyError", "'lr'"), Kind.EXCEPTION),
        (("SystemExit", "0"), Kind.EXITED_EARLY),
        (("SystemExit", "None"), Kind.EXITED_EARLY),
        (("SystemExit", "3"), Kind.EXITED),
        (("SystemExit", "no data"), Kind.EXITED),
        (("RuntimeError", "DefaultCPUAllocator: can't allocate memory"), Kind.OOM_HOST),
    ],
)
def test_what_a_rank_says_it_dies_of_is_told_before_it_is_dead(error: tuple[str, str], kind: Kind) -> None:
    job = trained()
    job.hear_evidence(0, dying(*error), asked=False)
    (told,) = job.diagnoses
    assert (told.diagnosis.kind, told.diagnosis.culprits, told.fault, told.reported) == (kind, (2,), 1, False)
    assert job.at(Phase.RUNNING)
    job.kill(2, "exit code 1")
    assert job.at(Phase.PAUSING)
    job.paused((2,)).recovered()
    assert job.successes[-1].record.fault == 1
    assert len(job.diagnoses) == 1


def test_a_rank_that_survives_what_it_has_said_leaves_no_fault_open() -> None:
    job = trained()
    job.hear_evidence(0, dying("KeyError", "'lr'"), asked=False)
    job.train(10, STEP_S)
    job.kill(1)
    job.hear_evidence(0, {1: FAULTS["SIGKILL"].evidence((1,))[1]}, asked=False)
    assert [(told.fault, told.diagnosis.culprits) for told in job.diagnoses] == [(1, (2,)), (2, (1,))]


def test_a_death_that_may_be_anothers_fault_has_all_ranks_asked_with_the_order_to_pause() -> None:
    job = trained()
    before = job.directive.probe
    found = FAULTS["sends another size, gloo raises"].evidence((2,), 4)
    job.kill(1, "signal 6 (SIGABRT)")
    assert job.order is Order.PAUSE
    assert job.directive.probe > before
    job.hear_evidence(0, found)
    assert job.diagnoses[-1].diagnosis.kind is Kind.SIZE_MISMATCH
    assert job.diagnoses[-1].diagnosis.culprits == (2,)


def test_processes_that_fail_at_their_start_are_not_asked_for_others_may_follow() -> None:
    job = Job(per_node=4)
    job.send(0)
    before = job.directive.probe
    job.kill(1, "exit code 1", step=-1)
    assert job.at(Phase.STRAYED)
    job.wait(0.3)
    job.hear_evidence(0, {}, asked=False)
    assert job.at(Phase.STRAYED)
    assert job.directive.probe == before


def test_a_death_that_explains_itself_asks_nobody() -> None:
    job = trained()
    before = job.directive.probe
    job.kill(1, "signal 9 (SIGKILL)")
    assert job.directive.probe == before


def test_an_error_of_its_own_that_a_rank_came_out_with_is_retried_without_waiting_for_the_news_of_a_loss() -> None:
    job = trained()
    job.say(2, Stage.PAUSED, cause="RuntimeError: [Errno 28] No space left on device")
    job.silent_for(0.3, beat_s=0.15)
    job.hear_evidence(0, {**standing(job), **dying("RuntimeError", "[Errno 28] No space left on device")})
    assert job.at(Phase.PAUSING)
    assert job.diagnoses[-1].diagnosis.kind is Kind.DISK_FULL
    assert job.incarnations == [0, 0, 0, 0]


def test_ranks_that_are_lost_with_their_node_are_told_of() -> None:
    job = Job(nodes=2, per_node=2).up()
    job.silence(1)
    (told,) = job.diagnoses
    assert (told.diagnosis.kind, told.diagnosis.culprits) == (Kind.SILENT, (2, 3))
    assert told.diagnosis.sentence == "Ranks 2 and 3 cannot be heard: node 1 is lost: its agent is not heard any more."


def test_evidence_that_a_process_has_ended_is_not_replaced_by_one_that_it_lives() -> None:
    job = Job(per_node=4).up()
    job.kill(2)
    found = FAULTS["SIGKILL"].evidence()[2]
    job.hear_evidence(0, {2: found}, asked=False)
    assert found.process is not None
    job.hear_evidence(0, {2: replace(base(2, 4), process=replace(found.process, state=RunState.RUNNING))}, asked=False)
    assert job.core.watch.evidence(job.now_s)[JobRank(2)].end.ending is not None
