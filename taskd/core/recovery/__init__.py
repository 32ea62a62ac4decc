"""The recovery of one job: the manager's machine, in the manager's process.

`machine.py` takes in reports and time; `table.py` says what follows. `phases.py` and `events.py` are the data,
`handlers/` the decisions, `job.py` the facts, and the other files the effects by which facts change.
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
