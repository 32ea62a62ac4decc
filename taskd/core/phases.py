"""The words of the manager's machine: phases of a job, events, actions, and which stages mean what.

Rules:

1. Data only; `course.py` says what is done and `recovery.py` when.
2. A report of a stage is an event. Several stages may be the same event.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from taskd.core.evidence import Evidence
from taskd.core.findings import Diagnosis
from taskd.core.record import FaultRecord
from taskd.core.rhythm import Hang
from taskd.wire.messages import Directive, Stage


class Phase(Enum):
    """Where the job stands."""

    FORMING = "forming"  # not all nodes have reported yet
    RUNNING = "running"
    STRAYED = "strayed"  # a rank came out with an error, or none gets on: waiting for what the others know of it
    PAUSING = "pausing"  # survivors leave their collectives, new processes start
    JOINING = "joining"  # groups are formed, state is restored
    RESUMING = "resuming"  # the first step of the new world
    RESTARTING = "restarting"  # all processes start anew
    FINISHING = "finishing"  # every rank has finished and was let go; processes end, or come back
    STOPPED = "stopped"


class Event(Enum):
    """What may happen."""

    LOST = "lost"
    STARTED = "started"
    PAUSED = "paused"
    JOINED = "joined"
    RESTORED = "restored"
    COMMITTED = "committed"
    FINISHED = "finished"
    EXITED = "exited"
    NODE_LOST = "node lost"
    NODE_LEAVES = "node leaves"
    CANDIDATE = "candidate"  # a node waits for a place
    DRAINED = "drained"  # an operator wants a node empty
    DUMPED = "dumped"
    HUNG = "hung"  # no progress for longer than the job's rhythm explains
    ANSWERED = "answered"  # all that were asked have answered
    OVERTAKEN = "overtaken"  # an agent carries a newer generation: it has gone on without this manager
    EXPIRED = "expired"


EVENT_OF_STAGE = {
    Stage.STARTING: Event.STARTED,
    Stage.TRAINING: Event.STARTED,
    Stage.PAUSED: Event.PAUSED,
    Stage.JOINED: Event.JOINED,
    Stage.RESTORED: Event.RESTORED,
    Stage.COMMITTED: Event.COMMITTED,
    Stage.FINISHED: Event.FINISHED,
    Stage.DUMPED: Event.DUMPED,
    Stage.RELEASED: Event.STARTED,
    Stage.EXITED: Event.EXITED,
    Stage.DEAD: Event.LOST,
}
LIVE = (Phase.RUNNING, Phase.STRAYED)
BUILDING = (Phase.PAUSING, Phase.JOINING, Phase.RESUMING)

JOINED = (Stage.JOINED, Stage.RESTORED, Stage.COMMITTED, Stage.FINISHED, Stage.DUMPED)
RESTORED = (Stage.RESTORED, Stage.COMMITTED, Stage.FINISHED, Stage.DUMPED)
RESUMED = (Stage.COMMITTED, Stage.FINISHED)
DUMPED = (Stage.DUMPED,)
DONE = (Stage.FINISHED, Stage.RELEASED, Stage.EXITED)
UP = tuple(stage for stage in Stage if stage is not Stage.DEAD)


@dataclass(frozen=True, slots=True)
class Publish:
    """Send this directive to every agent, now and as the answer to each of their reports."""

    directive: Directive


@dataclass(frozen=True, slots=True)
class Recovered:
    """Record this recovery as a success."""

    record: FaultRecord


@dataclass(frozen=True, slots=True)
class Stopped:
    """The job ends. `record` is that of the fault that ended it, if one did."""

    reason: str
    exit_code: int
    record: FaultRecord | None


@dataclass(frozen=True, slots=True)
class Setback:
    """An attempt at this recovery has failed: the whole sentence, and the reason alone."""

    record: FaultRecord
    text: str
    why: str


@dataclass(frozen=True, slots=True)
class AskKernel:
    """Does anybody listen at the store's port of this silent agent? Answered by `Recovery.answered`."""

    agent_id: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class AskCluster:
    """Get a node for this place."""

    node_rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class Superseded:
    """The agents obey a newer manager: this one decides nothing any more."""

    term: int


@dataclass(frozen=True, slots=True)
class Diagnosed:
    """A fault has a diagnosis, or another one than before.

    Attributes:
        fault: number of the fault, counted by this manager from 1.
        since_s: when the fault was first known; of a hang, when there last was progress.
        reported: nothing else tells of it: no recovery is under way.

    """

    fault: int
    diagnosis: Diagnosis
    evidence: Mapping[int, Evidence]
    hang: Hang | None
    since_s: float
    step: int
    generation: int
    reported: bool


@dataclass(frozen=True, slots=True)
class Note:
    """Tell the operator. `warns`: it is something to act upon."""

    text: str
    warns: bool = False


Action = Publish | Recovered | Setback | Stopped | Diagnosed | AskKernel | AskCluster | Superseded | Note
