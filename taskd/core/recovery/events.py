"""Events of a job. Each event carries its own subject: a rank of the job, or the place of a node.

A report of a stage is an event. Several stages may be the same event.
"""

from enum import Enum
from typing import ClassVar, TypeAlias

from msgspec import Struct

from taskd.core.diagnosis.findings import Diagnosis
from taskd.wire.kinds import JobRank, NodeRank
from taskd.wire.messages import Ledger, Stage


class Event(Enum):
    """Names of the events."""

    __hash__ = object.__hash__  # the default runs Python code, and members are compared by identity

    FORMED = "formed"
    LOST = "lost"
    STARTED = "started"
    PAUSED = "paused"
    JOINED = "joined"
    RESTORED = "restored"
    COMMITTED = "committed"
    FINISHED = "finished"
    EXITED = "exited"
    DUMPED = "dumped"
    NODE_LOST = "node lost"
    NODE_LEAVES = "node leaves"
    CANDIDATE = "candidate"
    DRAINED = "drained"
    HUNG = "hung"
    CORRUPTED = "corrupted"
    RESTART_ASKED = "restart asked for"
    ANSWERED = "answered"
    ECHOED = "echoed"
    OVERTAKEN = "overtaken"
    ISOLATED = "isolated"
    EXPIRED = "expired"
    KEPT = "processes kept"
    RESTARTED = "all start anew"
    UNDECIDED = "no quorum"
    REFUSED = "refused"


class Formed(Struct, frozen=True):
    """Enough nodes have reported, and the job begins. `ledger`: that of a former manager, if there was one."""

    kind: ClassVar[Event] = Event.FORMED
    ledger: Ledger | None


class Lost(Struct, frozen=True):
    """A rank's process has ended with a status other than 0."""

    kind: ClassVar[Event] = Event.LOST
    rank: JobRank


class Started(Struct, frozen=True):
    """A rank's process runs."""

    kind: ClassVar[Event] = Event.STARTED
    rank: JobRank


class Paused(Struct, frozen=True):
    """A rank has left its collectives."""

    kind: ClassVar[Event] = Event.PAUSED
    rank: JobRank


class Joined(Struct, frozen=True):
    """A rank is in the groups of the new world."""

    kind: ClassVar[Event] = Event.JOINED
    rank: JobRank


class Restored(Struct, frozen=True):
    """A rank holds the state from which training resumes."""

    kind: ClassVar[Event] = Event.RESTORED
    rank: JobRank


class Committed(Struct, frozen=True):
    """A rank has committed a step of this generation."""

    kind: ClassVar[Event] = Event.COMMITTED
    rank: JobRank


class Finished(Struct, frozen=True):
    """A rank's resilient function has returned."""

    kind: ClassVar[Event] = Event.FINISHED
    rank: JobRank


class Exited(Struct, frozen=True):
    """A rank's process has ended with status 0."""

    kind: ClassVar[Event] = Event.EXITED
    rank: JobRank


class Dumped(Struct, frozen=True):
    """A rank has written its part of a checkpoint."""

    kind: ClassVar[Event] = Event.DUMPED
    rank: JobRank


class NodeLost(Struct, frozen=True):
    """An agent is gone, and with it every rank of its node."""

    kind: ClassVar[Event] = Event.NODE_LOST
    place: NodeRank
    text: str = ""


class NodeLeaves(Struct, frozen=True):
    """torchrun has ended on a node."""

    kind: ClassVar[Event] = Event.NODE_LEAVES
    place: NodeRank


class Candidate(Struct, frozen=True):
    """A node may wait for a place."""

    kind: ClassVar[Event] = Event.CANDIDATE


class Drained(Struct, frozen=True):
    """A node must be emptied, because an operator requests it or the node is slow."""

    kind: ClassVar[Event] = Event.DRAINED
    place: NodeRank
    reason: str


class Hung(Struct, frozen=True):
    """The job has made no progress for longer than its rhythm explains."""

    kind: ClassVar[Event] = Event.HUNG


class Corrupted(Struct, frozen=True):
    """The states of replicas differ, and a recovery must follow.

    `odd`: ranks to replace; none if it cannot be decided which state is right. `verified`: the newest step at which all
    states were equal, if all ranks may have copies of it; else -1.
    """

    kind: ClassVar[Event] = Event.CORRUPTED
    diagnosis: Diagnosis
    odd: tuple[JobRank, ...]
    verified: int


class RestartAsked(Struct, frozen=True):
    """A rank requests a restart of all processes, although nothing has failed."""

    kind: ClassVar[Event] = Event.RESTART_ASKED
    rank: JobRank
    reason: str


class Answered(Struct, frozen=True):
    """All agents that were probed have answered."""

    kind: ClassVar[Event] = Event.ANSWERED


class Echoed(Struct, frozen=True):
    """Enough nodes may have reported that they know the next world."""

    kind: ClassVar[Event] = Event.ECHOED


class Overtaken(Struct, frozen=True):
    """An agent carries a newer world, or one that another manager has planned: the job went on without this manager."""

    kind: ClassVar[Event] = Event.OVERTAKEN
    place: NodeRank


class Isolated(Struct, frozen=True):
    """A node is lost, and too few other nodes have reported for too long."""

    kind: ClassVar[Event] = Event.ISOLATED
    reason: str


class Expired(Struct, frozen=True):
    """The phase has reached its deadline."""

    kind: ClassVar[Event] = Event.EXPIRED


class Kept(Struct, frozen=True):
    """The chosen strategy keeps the living processes."""

    kind: ClassVar[Event] = Event.KEPT


class Restarted(Struct, frozen=True):
    """The chosen strategy restarts all processes."""

    kind: ClassVar[Event] = Event.RESTARTED


class Undecided(Struct, frozen=True):
    """Too few nodes report to choose a strategy."""

    kind: ClassVar[Event] = Event.UNDECIDED


class Refused(Struct, frozen=True):
    """The job does not recover from the fault, for this reason."""

    kind: ClassVar[Event] = Event.REFUSED
    reason: str


OfRank: TypeAlias = Lost | Started | Paused | Joined | Restored | Committed | Finished | Exited | Dumped
OfNode: TypeAlias = NodeLost | NodeLeaves | Candidate | Drained | Overtaken | Isolated
Chosen: TypeAlias = Kept | Restarted | Undecided | Refused
AnyEvent: TypeAlias = OfRank | OfNode | Chosen | Formed | Hung | Corrupted | RestartAsked | Answered | Echoed | Expired

EVENT_OF_STAGE: dict[Stage, type[OfRank]] = {
    Stage.STARTING: Started,
    Stage.TRAINING: Started,
    Stage.PAUSED: Paused,
    Stage.JOINED: Joined,
    Stage.RESTORED: Restored,
    Stage.COMMITTED: Committed,
    Stage.FINISHED: Finished,
    Stage.DUMPED: Dumped,
    Stage.RELEASED: Started,
    Stage.EXITED: Exited,
    Stage.DEAD: Lost,
}

JOINED = (Stage.JOINED, Stage.RESTORED, Stage.COMMITTED, Stage.FINISHED, Stage.DUMPED)
RESTORED = (Stage.RESTORED, Stage.COMMITTED, Stage.FINISHED, Stage.DUMPED)
RESUMED = (Stage.COMMITTED, Stage.FINISHED)
DUMPED = (Stage.DUMPED,)
DONE = (Stage.FINISHED, Stage.RELEASED, Stage.EXITED)
UP = tuple(stage for stage in Stage if stage is not Stage.DEAD)
