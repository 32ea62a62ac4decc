"""Reasons to wait for a rank that has not paused in time.

Rules:

1. A rank that writes or reads a checkpoint may finish it.
2. If no paused rank holds a consistent state, the late ranks are all that is left of the job. They are waited for,
   unless they provably do nothing.
3. A process that is stopped, frozen or gone is never waited for. Every wait has a limit (`Deadlines.pause_limit_s`).
"""

from typing import Final

from taskd.core.diagnosis.evidence import Evidence, RunState, Standing
from taskd.core.diagnosis.proof import doubt

_STILL: Final = (RunState.STOPPED, RunState.TRACED)


def reprieve(known: Evidence | None, *, last: bool) -> str:
    """Return why a late rank is waited for; "" if it is not.

    `last`: no other rank is known to hold a consistent state.
    """
    if known is None:
        return ""  # not even its agent has evidence of it
    process, cgroup = known.process, known.cgroup
    if known.gone or (process is not None and process.state in _STILL) or (cgroup is not None and cgroup.frozen):
        return ""
    if known.position.standing is Standing.CHECKPOINT:
        return "it is inside a checkpoint"
    if last and doubt([known]):
        return "no other rank holds a consistent state"
    return ""
