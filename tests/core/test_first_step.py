"""A new world that commits no step: ranks that wait in different collectives are found early."""

from typing import Any

import pytest

from taskd.core.diagnosis.evidence import Evidence
from taskd.core.diagnosis.operation import Operation
from taskd.core.policy import Tempo
from taskd.core.recovery import Note, Phase, Setback
from taskd.wire.messages import Order, Stage
from tests.core.driver import Job
from tests.core.scenarios import base, entered

LOOK_S = 60.0
DEADLINE_S = 600.0


def resuming(**more: Any) -> Job:
    """Return a job whose rank 0 was killed. Its new process and rank 1 are about to make their first step."""
    job = Job(max_restarts=1, resume_s=DEADLINE_S, **more).up()
    job.kill(0)
    job.paused()
    for stage in (Stage.JOINED, Stage.RESTORED):
        job.all(stage)
    assert job.at(Phase.RESUMING)
    return job


def answers(*, same: bool) -> dict[int, Evidence]:
    op = Operation.BROADCAST if same else Operation.ALLREDUCE
    return {0: entered(base(0, 2), op=op, bytes=32), 1: entered(base(1, 2), op=Operation.BROADCAST, bytes=32)}


def test_different_calls_end_that_world_and_are_told() -> None:
    job = resuming()
    plan = job.directive.plan
    job.wait(LOOK_S - 1)
    assert (job.directive.probe, job.phase) == (0, Phase.RESUMING)
    job.wait(1.0)
    assert (job.order, job.directive.plan) == (Order.JOIN, plan), "what is wanted of the ranks stays"
    assert job.directive.probe > 0
    job.hear_evidence(0, answers(same=False))
    job.wait(1.0)
    assert (job.phase, job.incarnations) == (Phase.RESTARTING, [2, 1])
    (setback,) = job.did(Setback)
    assert setback.text.startswith("attempt 1 (recover-in-place) failed: Rank 0 (")
    assert "allreduce" in setback.text
    assert "broadcast" in setback.text
    assert f"no step for {LOOK_S:.1f} s in the new world" in setback.text
    assert job.core.job.budget is not None
    assert job.core.job.budget.spent == 1


@pytest.mark.parametrize("evidence", [{}, answers(same=True)], ids=["nobody answers", "the same calls"])
def test_what_may_be_work_has_its_time(evidence: dict[int, Evidence]) -> None:
    """The manager asks again and again; the deadline does not change."""
    job, probes = resuming(), []
    for _ in range(int(DEADLINE_S / (LOOK_S + 1.0)) - 1):
        job.wait(LOOK_S)
        probes.append(job.directive.probe)
        job.hear_evidence(0, evidence)
        job.wait(1.0)
        assert job.at(Phase.RESUMING)
    assert len(set(probes)) == len(probes)
    job.wait(2 * LOOK_S)
    assert "the world was not built, or committed no step, in time" in job.did(Setback)[0].text


def test_a_step_that_comes_meanwhile_is_a_success() -> None:
    job = resuming()
    job.wait(LOOK_S)
    job.all(Stage.COMMITTED, step=6)
    assert job.at(Phase.RUNNING)
    assert job.core.watch.hang is None


def test_where_hangs_are_only_reported_it_is_told() -> None:
    job = resuming(recover_hangs=False)
    job.wait(LOOK_S)
    job.hear_evidence(0, answers(same=False))
    job.wait(1.0)
    assert job.at(Phase.RESUMING)
    assert any("allreduce" in note.text for note in job.did(Note) if note.warns)


def test_it_is_as_patient_as_the_job_is_told_to_be() -> None:
    assert Tempo().first_look_s == LOOK_S
    assert Tempo(first_s=5.0).first_look_s == 5.0
