"""From states that differ into a fault."""

from taskd.core.recovery.actions import Next, do
from taskd.core.recovery.attempts import begin
from taskd.core.recovery.causes import Cause, CauseKind
from taskd.core.recovery.corruption import accuse
from taskd.core.recovery.events import Corrupted
from taskd.core.recovery.job import Job
from taskd.core.recovery.phases import Choosing, Running


def recover(_phase: Running, event: Corrupted, _job: Job, now_s: float) -> Next:
    """Whoever is odd is replaced; if nobody can be blamed, all go back to a step at which they were equal."""
    kind = event.diagnosis.kind
    cause = Cause(CauseKind.DIAGNOSED, kind.value, detail=kind.name)
    causes = dict.fromkeys((fact.rank for fact in event.diagnosis.facts), cause)
    started = do(begin, causes, diagnosis=event.diagnosis, verified=event.verified)
    return Choosing(now_s), (do(accuse, event), started)
