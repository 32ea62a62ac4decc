"""Recovery of one job: the state machine of the manager, which runs in the manager's process.

`machine.py` receives reports and time. `table.py` maps each phase and event to a handler. `phases.py` and `events.py`
hold the data, `handlers/` the decisions and `job.py` the facts. The other files hold the effects by which facts change,
and the pure functions that these use.
"""

from taskd.core.recovery.actions import (
    Action,
    AskCluster,
    AskKernel,
    Diagnosed,
    JobEnded,
    Note,
    Publish,
    Recovered,
    Setback,
    Superseded,
)
from taskd.core.recovery.events import EVENT_OF_STAGE, Event
from taskd.core.recovery.machine import Recovery
from taskd.core.recovery.phases import Phase
from taskd.core.recovery.record import FaultRecord
from taskd.core.recovery.table import TABLE

__all__ = [
    "EVENT_OF_STAGE", "TABLE", "Action", "AskCluster", "AskKernel", "Diagnosed", "JobEnded", "Event", "FaultRecord",
    "Note", "Phase", "Publish", "Recovered", "Recovery", "Setback", "Superseded",
]  # fmt: skip
