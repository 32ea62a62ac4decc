"""A job without progress: the manager asks for the reason, acts on the answers, and reports each fault."""

from dataclasses import replace

import pytest

from taskd.core.diagnosis.evidence import Clocks, Evidence, NonFinite, PythonError, Standing
from taskd.core.diagnosis.findings import Kind
from taskd.core.diagnosis.rhythm import Activity
from taskd.core.diagnosis.watch import AGAIN_S
from taskd.core.policy import Strategy, Tempo
from taskd.core.recovery import Note, Phase
from taskd.wire.kinds import JobRank, NodeRank
from taskd.wire.messages import Condition, Order, Stage
from tests.core.driver import Job
from tests.core.scenarios import FAULTS, base, but, known_of

STEP_S = 0.1


def trained(nodes: int = 1, per_node: int = 4, steps: int = 250, **more: object) -> Job:
    """Return a job whose rhythm is known: steps of 0.1 s."""
    return Job(nodes=nodes, per_node=per_node, **more).up().train(steps, STEP_S)  # type: ignore[arg-type]


def seen(fault: str, job: Job, culprits: tuple[int, ...] = (2,)) -> dict[int, Evidence]:
    """Return the evidence that all agents would report of this fault, at the job's present step."""
    step = job.progress.step if job.progress is not None else 5
    found = FAULTS[fault].evidence(culprits, job.nodes * job.per_node)
    return {rank: but(known, step=step) for rank, known in found.items()}


def standing(job: Job, **of_rank: Standing) -> dict[int, Evidence]:
    """Return evidence of healthy ranks in no collective, each with its present activity."""
    step = job.progress.step if job.progress is not None else 5
    where = {int(name.removeprefix("rank_")): value for name, value in of_rank.items()}
    clocks = Clocks(0.1, 0.0, 0.0)
    return {
        rank: but(base(rank, 4), step=step, standing=where.get(rank, Standing.TRAINING), clocks=clocks)
        for rank in range(4)
    }


def test_whoever_holds_the_job_up_is_replaced_by_its_diagnosis() -> None:
    job = trained()
    since_s = job.now_s
    job.silent_for(1.9)
    assert job.at(Phase.RUNNING)
    job.silent_for(0.35)
    assert job.at(Phase.SUSPECTING)
    assert job.directive.probe > 0
    job.hear_evidence(0, seen("SIGSTOP", job))
    assert job.at(Phase.PAUSING)
    assert job.order is Order.PAUSE
    assert job.incarnations == [0, 0, 1, 0]
    (told,) = job.diagnoses
    assert (told.fault, told.diagnosis.kind, told.diagnosis.culprits, told.reported) == (1, Kind.STOPPED, (2,), False)
    assert told.since_s == pytest.approx(since_s)
    assert told.hang is not None
    assert "3 x" not in told.hang.reason
    assert job.directive.reason == "rank 2: stopped"
    job.paused((2,)).recovered()
    (success,) = job.successes
    assert success.record.decision.strategy is Strategy.RECOVER_IN_PLACE
    assert success.record.fault == 1
    assert success.record.diagnosis == told.diagnosis


def test_a_hang_is_found_again_after_the_recovery() -> None:
    job = trained()
    job.silent_for(2.5)
    job.hear_evidence(0, seen("SIGSTOP", job))
    job.paused((2,)).recovered()
    job.train(5, STEP_S)
    job.silent_for(2.5)
    job.hear_evidence(0, seen("SIGSTOP", job, (1,)))
    assert [told.fault for told in job.diagnoses] == [1, 2]
    assert job.diagnoses[-1].diagnosis.culprits == (1,)


def test_the_time_of_a_recovery_is_no_slow_step() -> None:
    job = trained()
    job.silent_for(2.5)
    job.hear_evidence(0, seen("SIGSTOP", job))
    for rank in (0, 1, 3):
        job.say(rank, Stage.PAUSED)
    job.silent_for(20.0)  # the newcomer starts cold
    job.say(2, Stage.PAUSED, step=-1, condition=Condition.EMPTY)
    job.all(Stage.JOINED)
    job.all(Stage.RESTORED)
    assert job.at(Phase.RESUMING)
    job.train(1, STEP_S)  # the agents report before every rank has reported the first step
    job.all(Stage.COMMITTED, step=6)
    assert job.at(Phase.RUNNING)
    job.train(5, STEP_S)
    assert job.silent_until_asked(60.0) < 2.5


def test_a_rank_that_got_on_meanwhile_ends_the_suspicion() -> None:
    job = trained()
    job.silent_for(2.5)
    on = {rank: but(known, step=(known.position.step or 0) + 1) for rank, known in seen("SIGSTOP", job).items()}
    job.hear_evidence(0, on)
    assert job.at(Phase.RUNNING)
    assert job.diagnoses == []
    assert job.incarnations == [0, 0, 0, 0]


@pytest.mark.parametrize("phase", [Standing.EVALUATION, Standing.CHECKPOINT])
def test_an_evaluation_is_no_hang_until_it_is_much_longer_than_those_before(phase: Standing) -> None:
    job = trained()
    for _ in range(2):
        for _ in range(22):  # 5.5 s in all
            job.silent_for(0.25)
            if job.at(Phase.SUSPECTING):
                job.hear_evidence(0, standing(job, rank_1=phase))
        assert job.at(Phase.RUNNING)
        job.train(20, STEP_S)
    assert any(isinstance(action, Note) and phase.value in action.text for action in job.actions)
    begun_s = job.now_s
    while not job.at(Phase.PAUSING):
        job.silent_for(0.25)
        if job.at(Phase.SUSPECTING):
            job.hear_evidence(0, standing(job, rank_1=phase))
    assert 12.0 < job.now_s - begun_s < 18.0


@pytest.mark.parametrize("said", [None, NodeRank(9)])
def test_an_evaluation_ends_with_the_next_step_whatever_node_its_agent_names(said: NodeRank | None) -> None:
    """Rank 3 is on node 1. No node would take back an evaluation that was announced under a different node number."""
    job = trained(nodes=2, per_node=2)
    rhythm = job.core.job.case.watch.rhythm.rhythm
    job.silent_for(2.5)
    found = {rank: but(known, node=said) for rank, known in standing(job, rank_3=Standing.EVALUATION).items()}
    job.hear_evidence(0, {0: found[0], 1: found[1]})
    job.hear_evidence(1, {2: found[2], 3: found[3]})
    assert (job.phase, rhythm.activity) == (Phase.RUNNING, Activity.EVALUATION)
    job.train(2, STEP_S)
    assert rhythm.activity is Activity.TRAINING


def test_a_stopped_process_is_a_fault_in_an_evaluation_too() -> None:
    job = trained()
    job.silent_for(2.5)
    found = seen("SIGSTOP", job)
    job.hear_evidence(0, {rank: but(known, standing=Standing.EVALUATION) for rank, known in found.items()})
    assert job.diagnoses[-1].diagnosis.culprits == (2,)


def test_where_nobody_can_be_blamed_the_step_is_done_again() -> None:
    job = trained()
    job.silent_for(2.5)
    job.hear_evidence(0, seen("connection cut", job))
    assert job.at(Phase.PAUSING)
    assert job.incarnations == [0, 0, 0, 0]
    assert job.diagnoses[-1].diagnosis.kind is Kind.CONNECTION_CUT
    job.paused(()).recovered()
    assert job.successes[-1].record.decision.strategy is Strategy.RETRY


def test_the_answers_of_all_nodes_are_waited_for_and_those_that_do_not_come_too() -> None:
    job = trained(nodes=2, per_node=2)
    job.silent_for(1.9)
    job.silent.add(job.holder(1))
    job.silent_for(0.5)
    found = seen("SIGSTOP", job)
    job.hear_evidence(0, {0: found[0], 1: found[1]})
    assert job.at(Phase.SUSPECTING)
    job.silent_for(1.0)
    assert job.at(Phase.SUSPECTING)  # perhaps its node is lost
    job.silent.clear()
    job.silent_for(0.3)
    job.hear_evidence(0, {0: found[0], 1: found[1]})
    job.hear_evidence(1, {2: found[2], 3: found[3]})
    assert job.diagnoses[-1].diagnosis.culprits == (2,)


def test_an_agent_that_is_heard_and_does_not_answer_is_asked_three_times_and_then_not_waited_for() -> None:
    job = trained(nodes=2, per_node=2)
    job.silent_for(2.5)
    found = seen("SIGSTOP", job)
    asked = {job.directive.probe}
    for _ in range(5):
        job.hear_evidence(1, {2: found[2], 3: found[3]})
        assert job.at(Phase.SUSPECTING)
        job.silent_for(0.25)
        asked.add(job.directive.probe)
    assert len(asked) == 3
    assert job.diagnoses[-1].diagnosis.culprits == (2,)


def test_answers_to_an_older_question_do_not_count() -> None:
    job = trained()
    job.silent_for(2.5)
    job.hear_evidence(0, seen("SIGSTOP", job), asked=False)
    assert job.at(Phase.SUSPECTING)


def test_a_silent_node_is_no_reason_to_replace_its_ranks() -> None:
    """No answer has come from any node: the question or the answers were lost."""
    job = trained()
    job.silent_for(5.0)
    assert job.at(Phase.PAUSING)
    assert job.incarnations == [0, 0, 0, 0]


def test_a_job_that_somebody_has_stopped_as_a_whole_keeps_its_state() -> None:
    job = trained()
    for _ in AGAIN_S:
        job.silent_until_asked(2000.0)
        job.hear_evidence(0, seen("SIGSTOP", job, (0, 1, 2, 3)))
        assert job.at(Phase.RUNNING)
    assert [told.reported for told in job.diagnoses] == [True, True]
    job.silent_until_asked(2000.0)
    job.hear_evidence(0, seen("SIGSTOP", job, (0, 1, 2, 3)))
    assert job.at(Phase.RESTARTING)


def test_a_hang_may_be_only_told() -> None:
    job = trained(recover_hangs=False)
    job.silent_for(2.5)
    job.hear_evidence(0, seen("SIGSTOP", job))
    assert job.at(Phase.RUNNING)
    assert [told.reported for told in job.diagnoses] == [True]
    job.silent_for(30.0)
    assert len(job.diagnoses) == 1


def impatient(unproven_s: float = 30.0, max_restarts: int = 3) -> Job:
    """Return a job with a short `unproven_s`."""
    return trained(tempo=Tempo(unproven_s=unproven_s), max_restarts=max_restarts)


def asked_again(job: Job, fault: str, until_s: float) -> int:
    """Leave the job silent until `until_s`, with this fault as each answer. Return the number of questions."""
    end_s, asked = job.now_s + until_s, 0
    while job.now_s < end_s and not job.at(Phase.PAUSING):
        job.silent_for(0.25)
        if job.at(Phase.SUSPECTING):
            asked += 1
            job.hear_evidence(0, seen(fault, job))
    return asked


def test_who_may_be_at_work_is_told_of_at_once_and_replaced_after_unproven_s() -> None:
    job = impatient()
    assert 3 < asked_again(job, "infinite loop in Python", 30.0) < 20
    assert job.at(Phase.RUNNING)
    assert job.incarnations == [0, 0, 0, 0]
    (told,) = job.diagnoses
    assert (told.diagnosis.proven, told.reported, told.fault) == (False, True, 1)
    assert told.diagnosis.sentence.endswith("it is recovered from in 30 s (TASKD_HANG_UNPROVEN_S).")
    asked_again(job, "infinite loop in Python", 5.0)
    assert job.at(Phase.PAUSING)
    assert job.incarnations == [0, 0, 1, 0]
    assert [told.fault for told in job.diagnoses] == [1, 1]


def test_what_is_proven_later_is_acted_upon_at_once() -> None:
    job = trained()
    asked_again(job, "infinite loop in Python", 60.0)
    assert job.at(Phase.RUNNING)
    asked_again(job, "Python deadlock", 30.0)
    assert job.at(Phase.PAUSING)
    assert [told.diagnosis.proven for told in job.diagnoses] == [False, True]
    assert [told.fault for told in job.diagnoses] == [1, 1]


def test_work_that_takes_its_time_is_no_alarm_the_second_time() -> None:
    job = trained()
    for _ in range(5):
        asked_again(job, "blocked in native code", 8.0)
        job.train(20, STEP_S)
    assert job.at(Phase.RUNNING)
    assert len(job.diagnoses) == 1
    assert any(isinstance(action, Note) and "at work for 8" in action.text for action in job.actions)


def test_what_was_interrupted_is_done_again_spends_no_restart_and_is_no_alarm_the_second_time() -> None:
    job = impatient(max_restarts=0)
    asked_again(job, "blocked in native code", 40.0)
    assert job.at(Phase.PAUSING)
    job.paused((2,)).recovered()
    (success,) = job.successes
    assert success.record.decision.strategy is Strategy.RECOVER_IN_PLACE
    job.train(50, STEP_S)
    told = len(job.diagnoses)
    asked_again(job, "blocked in native code", 40.0)
    assert job.at(Phase.RUNNING)
    assert len(job.diagnoses) == told


def test_alarms_without_proof_never_end_a_job_however_often_they_come() -> None:
    job = impatient(unproven_s=5.0)
    for _ in range(5):
        job.silent_until_asked(1e6)
        for _ in range(100_000):
            if job.at(Phase.PAUSING):
                break
            job.silent_for(2.0, beat_s=2.0)
            if job.at(Phase.SUSPECTING):
                job.hear_evidence(0, seen("blocked in native code", job))
        job.paused((2,)).recovered()
    assert job.at(Phase.RUNNING)
    assert len(job.successes) == 5


def test_what_is_proven_waits_for_no_gap_that_the_job_has_shown() -> None:
    job = trained()
    for _ in range(2):
        asked_again(job, "blocked in native code", 100.0)
        job.train(20, STEP_S)
    assert len(job.diagnoses) == 1
    job.silent_for(1.9)
    assert job.at(Phase.RUNNING)
    job.silent_for(0.35)
    job.hear_evidence(0, seen("SIGSTOP", job))
    assert job.at(Phase.PAUSING)
    assert job.incarnations == [0, 0, 1, 0]


def test_what_is_proven_in_the_first_steps_waits_for_no_rhythm() -> None:
    job = trained(steps=3)
    asked_again(job, "infinite loop in Python", 300.0)
    assert job.diagnoses == []
    job.train(1, STEP_S)
    job.silent_for(61.0)
    job.hear_evidence(0, seen("SIGSTOP", job))
    assert job.at(Phase.PAUSING)


def test_where_nobody_can_be_named_the_gaps_of_the_job_count() -> None:
    job = trained()
    asked_again(job, "blocked in native code", 50.0)
    job.train(20, STEP_S)
    asked_again(job, "connection cut", 80.0)
    assert job.at(Phase.RUNNING)
    asked_again(job, "connection cut", 30.0)
    assert job.at(Phase.PAUSING)


def test_of_several_only_those_are_replaced_that_provably_cannot_go_on() -> None:
    job = trained()
    job.silent_for(2.5)
    both = seen("SIGSTOP outside of a collective", job) | {1: seen("infinite loop in Python", job, (1,))[1]}
    job.hear_evidence(0, both)
    assert job.diagnoses[-1].diagnosis.culprits == (2,)
    assert job.incarnations == [0, 0, 1, 0]


def test_scripts_without_progress_are_never_said_to_hang() -> None:
    job = Job(per_node=4).up()
    job.wait(3 * 86_400)
    assert job.at(Phase.RUNNING)


# ---- reported only


def test_a_loss_that_is_not_finite_is_told_once_with_the_first_rank_that_saw_it() -> None:
    job = trained()
    job.hear_evidence(0, {2: replace(base(2, 4), non_finite=NonFinite(41))}, asked=False)
    job.hear_evidence(0, {1: replace(base(1, 4), non_finite=NonFinite(42))}, asked=False)
    (told,) = job.diagnoses
    assert (told.diagnosis.kind, told.diagnosis.culprits, told.reported) == (Kind.NON_FINITE, (2,), True)
    assert job.at(Phase.RUNNING)
    job.hear_evidence(0, {1: replace(base(1, 4), non_finite=NonFinite(4000))}, asked=False)
    assert [told.fault for told in job.diagnoses] == [1, 2]


def test_a_rank_that_says_what_it_dies_of_before_it_is_dead_is_lost_for_that_reason() -> None:
    """To the budget, all faults with unknown causes would be one and the same."""
    job = Job().up()
    job.say(0, Stage.PAUSED, cause="RuntimeError: Connection closed by peer")
    job.wait(0.15)
    dying = known_of(error=PythonError("ValueError", "bad batch", "train.py:3 in step", main=True), node=0)
    job.hear_evidence(0, {1: dying})
    assert job.core.record is not None
    assert "ValueError: bad batch" in job.core.record.causes[JobRank(1)].text
