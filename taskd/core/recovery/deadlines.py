"""When a phase has lasted for as long as it may, and when nothing is due by the clock."""

from taskd.core.recovery.job import Job
from taskd.core.recovery.phases import (
    AnyPhase,
    Finishing,
    Joining,
    Pausing,
    Phase,
    Rearranging,
    Restarting,
    Resuming,
    Strayed,
    Suspecting,
)


def expired(phase: AnyPhase, job: Job, now_s: float) -> bool:
    """Whether `Expired` happens now."""
    match phase:
        case Strayed() | Suspecting() | Joining():
            return now_s >= phase.until_s
        case Resuming():
            return now_s >= min(phase.until_s, phase.looks_s)
        case Finishing():
            return phase.until_s is not None and now_s >= phase.until_s
        case Rearranging():
            return _overtime(phase, job, now_s)
        case Pausing():
            return bool(job.late(phase, now_s))
        case Restarting() if job.world.vacant:
            return now_s >= job.nodes_due_s(phase.since_s)
        case Restarting():
            return now_s - phase.since_s >= job.policy.deadlines.replace_s
        case _:
            return False


def is_calm(phase: AnyPhase, job: Job) -> bool:
    """Tell whether all nodes train and stay. If no agent can be lost, only `Watch.ask_s` is due by the clock then."""
    return phase.kind is Phase.RUNNING and not any(view.status.leaving for view in job.world.nodes.views())


def _overtime(phase: Rearranging, job: Job, now_s: float) -> bool:
    """A step has taken too long, or too long after one rank had come to its end; or all have."""
    limits = job.policy.deadlines
    skewed = phase.first_out_s is not None and now_s - phase.first_out_s >= limits.skew_s
    return skewed or now_s - phase.since_s >= limits.commit_s or job.world.all_paused(newcomers=False)
