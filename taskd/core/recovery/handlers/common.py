"""Steps that several phases have in common."""

from collections.abc import Collection, Mapping

from taskd.core.recovery.actions import Effect, Next, do
from taskd.core.recovery.attempts import begin, refuse, stop
from taskd.core.recovery.case import report_diagnosis, take_up
from taskd.core.recovery.causes import Cause
from taskd.core.recovery.job import Job
from taskd.core.recovery.phases import AnyPhase, Choosing, Stopped
from taskd.wire.kinds import JobRank


def ignore(phase: AnyPhase, _event: object, _job: Job, _now_s: float) -> Next:
    """Known, and nothing follows."""
    return phase, ()


def fault(
    now_s: float, causes: Mapping[JobRank, Cause], *, free: bool = False, before: Collection[Effect] = ()
) -> Next:
    """A fault begins, of these ranks."""
    explained = all(cause.explains_itself for cause in causes.values())
    effects = (do(take_up, explained=explained), do(begin, causes, free=free), do(report_diagnosis))
    return Choosing(now_s), (*before, *effects)


def end(now_s: float, reason: str, exit_code: int = 1) -> Next:
    """The job ends."""
    return Stopped(now_s), (do(stop, reason, exit_code),)


def give_up(now_s: float, reason: str) -> Next:
    """The job cannot go on."""
    return Choosing(now_s), (do(refuse, reason),)
