"""Who has not paused in time and is waited for all the same, and why.

Rules:

1. Whoever writes or reads a checkpoint is let come to its end.
2. If nobody who has paused holds a consistent state, the late ones are all that is left of the job: they are waited
   for, unless they provably do nothing.
3. A process that is stopped, frozen or gone is waited for by nobody. Every wait has a limit
   (`Deadlines.pause_limit_s`).
"""

from typing import Final

from taskd.core.diagnosis.evidence import Evidence, RunState, Standing
from taskd.core.diagnosis.proof import doubt

_STILL: Final = (RunState.STOPPED, RunState.TRACED)


def reprieve(known: Evidence | None, *, last: bool) -> str:
    """Why a rank that is late is waited for; "" if it is not. `last`: no other is known to hold a consistent state."""
    if known is None:
        return ""  # not even its agent can say anything of it
    process, cgroup = known.process, known.cgroup
    if known.gone or (process is not None and process.state in _STILL) or (cgroup is not None and cgroup.frozen):
        return ""
    if known.position.standing is Standing.CHECKPOINT:
        return "it is inside a checkpoint"
    if last and doubt([known]):
        return "no other rank holds a consistent state"
    return ""
