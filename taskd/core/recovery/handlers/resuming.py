"""The first step of a new world takes long: ranks that wait in different collectives wait for ever.

Rules:

1. The ranks are asked as early as in a job without a rhythm, and again and again until the world's deadline.
2. Only calls that differ where they must be the same end that world before it: the script cannot go on in it, and may
   well from its beginning. Whatever else takes long may be at work.
"""

from dataclasses import replace

from taskd.core.diagnosis.rhythm import Hang
from taskd.core.diagnosis.watch import ANSWER_S
from taskd.core.recovery import attempts, case
from taskd.core.recovery.actions import Next, Note, do
from taskd.core.recovery.job import Job
from taskd.core.recovery.phases import Choosing, Resuming
from taskd.core.recovery.planning import note


def begin_step(job: Job, now_s: float) -> Resuming:
    """The world is built."""
    return Resuming(now_s, now_s + job.policy.deadlines.resume_s, looks_s=now_s + job.policy.tempo.first_look_s)


def look(phase: Resuming, job: Job, now_s: float) -> Next:
    """Ask; or, if they were asked, see what the answers come to."""
    if not phase.asked:
        waited_s, limit_s = now_s - phase.since_s, job.policy.tempo.first_look_s
        reason = f"no step for {waited_s:.1f} s in the new world"
        hang = Hang(phase.since_s, waited_s, limit_s, None, job.under_way.record.target_step, reason, early=True)
        return replace(phase, asked=True, looks_s=now_s + ANSWER_S), (do(case.look_into, hang),)
    diagnosis = job.case.watch.diagnosis(job.world.ranks, now_s)
    again = replace(phase, asked=False, looks_s=now_s + job.policy.tempo.first_look_s)
    if diagnosis is None or not diagnosis.proven or diagnosis.kind not in case.OF_THE_LIVING:
        return again, (do(case.withdraw),)
    if not job.policy.recover_hangs:
        return again, (do(case.withdraw), do(note, Note(diagnosis.sentence, warns=True)))
    failed = do(attempts.fail, diagnosis.sentence.rstrip("."), at_once=True)
    return Choosing(now_s), (do(case.withdraw), failed, do(attempts.choose_again))
