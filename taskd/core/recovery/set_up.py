"""Processes that end by themselves in their set-up: their effect on warm starts, and the reports of it.

The functions that take a time are effects, `(job, now_s, …)`. The table is in `warmth.py`.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from taskd.core.recovery.actions import Note, Setback
from taskd.core.recovery.warmth import TABLE, SetUpFailure, WarmStarts, Warmth
from taskd.wire.kinds import JobRank

if TYPE_CHECKING:
    from taskd.core.recovery.job import Job

ONLY_COLD: Final = "all processes of this job start cold from now on, as with TASKD_STANDBY=0"


def set_up_failure(job: "Job", rank: JobRank) -> SetUpFailure | None:
    """Return the kind of failure if the rank's process has ended by itself in its set-up; else None."""
    view, cause = job.world.ranks[rank], job.cause(rank)
    status = view.known
    if status is None or not view.fell_in_set_up or status.step >= 0 or not cause.by_itself:
        return None
    if status.kind:  # it has reported its own kind of fault
        return None
    if status.warm and not view.cold:  # a warm one in spite of a cold order counts as cold, so retries end
        return SetUpFailure.WARM
    return SetUpFailure.COLD_ALIKE if cause == job.world.warm_starts.cause else SetUpFailure.COLD


def only_too_warm(job: "Job", rank: JobRank) -> bool:
    """Return whether the rank's process has failed where a cold one may not."""
    failed = set_up_failure(job, rank)
    return failed is SetUpFailure.WARM and TABLE[job.world.warm_starts.warmth, failed] is Warmth.AVOIDED


def learn(job: "Job", _now_s: float, rank: JobRank) -> None:
    """Update the use of warm processes after the end of a rank's process."""
    failed, before = set_up_failure(job, rank), job.world.warm_starts
    if failed is None:
        return
    warmth = TABLE[before.warmth, failed]
    if warmth is before.warmth:
        return
    job.world.warm_starts = replace(before, warmth=warmth)
    if warmth is Warmth.AVOIDED:
        job.world.warm_starts = WarmStarts(warmth, job.cause(rank))
    else:
        job.out.append(Note(f"rank {rank}'s cold process failed as the warm one: warm ones are used again", warns=True))


def tell_setback(job: "Job", _now_s: float, rank: JobRank) -> None:
    """Report the failed warm process of a newcomer as a setback."""
    record = job.under_way.record
    text = f"{failed_warm(job, rank)}: a cold one takes its place, for the same restart; {ONLY_COLD}"
    record.setbacks.append(text)
    job.out.append(Setback(record, text, text))


def tell(job: "Job", _now_s: float, rank: JobRank) -> None:
    """Report the failed warm process of a rank that started with all the others."""
    job.out.append(Note(f"{failed_warm(job, rank)}: no restart is spent; {ONLY_COLD}", warns=True))


def failed_warm(job: "Job", rank: JobRank) -> str:
    """Return a description of the failure of a rank's warm process."""
    return f"rank {rank}'s warm process failed in its set-up ({job.cause(rank).text})"
