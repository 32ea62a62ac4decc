"""Ranks that have not paused in time: waited for, or fenced."""

import pytest

from taskd.core.diagnosis.evidence import Cgroup, Evidence, Process, RunState, Standing, Stillness
from taskd.core.policy import Deadlines
from taskd.core.recovery import Note, Phase
from taskd.core.recovery.reprieve import reprieve
from taskd.wire.messages import Condition, Stage
from tests.core.driver import DEADLINES, Job
from tests.core.scenarios import known_of

SAVES = known_of(process=Process(7, RunState.SLEEPING), standing=Standing.CHECKPOINT)
BUSY = known_of(process=Process(7, still=Stillness(1.0, "a lock", ran=("main",))), standing=Standing.TRAINING)
ASLEEP = known_of(process=Process(7, still=Stillness(1.0, "a lock", io_bytes=0)), standing=Standing.TRAINING)
STOPPED = known_of(process=Process(7, RunState.STOPPED), standing=Standing.CHECKPOINT)
FROZEN = known_of(process=Process(7), cgroup=Cgroup(frozen=True), standing=Standing.CHECKPOINT)


@pytest.mark.parametrize(
    ("known", "last", "waits"),
    [
        (SAVES, False, True),
        (SAVES, True, True),
        (BUSY, False, False),
        (BUSY, True, True),
        (ASLEEP, True, False),
        (STOPPED, True, False),
        (FROZEN, True, False),
        (None, True, False),
    ],
)
def test_who_is_waited_for(known: Evidence | None, last: bool, waits: bool) -> None:
    assert bool(reprieve(known, last=last)) is waits


def late(known: Evidence | None, ranks: int = 2) -> Job:
    """Return a job whose rank 0 has died and whose rank 1 does not pause. Its agent reports its activity."""
    job = Job(per_node=ranks).up()
    job.kill(0)
    job.say(0, Stage.PAUSED, step=-1, condition=Condition.EMPTY)
    for rank in range(2, ranks):
        job.say(rank, Stage.PAUSED)
    for _ in range(3):
        job.wait(DEADLINES.pause_s / 2)
        if known is not None:
            job.hear_evidence(0, {1: known})
    job.wait(0.6)
    return job


def test_a_late_rank_is_asked_what_it_does_before_it_is_fenced() -> None:
    job = late(SAVES)
    assert (job.phase, job.incarnations) == (Phase.PAUSING, [1, 0])
    (said,) = [note for note in job.did(Note) if note.warns]
    assert "rank 1 has not paused in 15 s, and is waited for: it is inside a checkpoint (at most 600 s" in said.text
    job.wait(300.0)
    job.hear_evidence(0, {1: SAVES})
    job.wait(0.1)
    assert job.incarnations == [1, 0]
    job.say(1, Stage.PAUSED)
    assert job.at(Phase.JOINING)


def test_the_wait_has_a_limit() -> None:
    job = late(SAVES)
    for _ in range(2):
        job.wait(Deadlines().pause_limit_s)
        job.hear_evidence(0, {1: SAVES})
    job.wait(0.6)
    assert job.at(Phase.RESTARTING)


def test_it_is_fenced_when_it_has_left_its_checkpoint_and_still_does_not_come() -> None:
    job = late(SAVES, ranks=3)
    assert job.incarnations == [1, 0, 0]
    job.wait(3.0)
    job.hear_evidence(0, {1: BUSY})
    job.wait(0.1)
    assert job.incarnations == [1, 1, 0], "rank 2 has the state"


@pytest.mark.parametrize("known", [None, STOPPED])
def test_who_has_no_reason_is_fenced_as_soon_as_that_is_known(known: Evidence | None) -> None:
    assert late(known).at(Phase.RESTARTING)
