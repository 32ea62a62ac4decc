"""What may happen to a job. Each event carries its own subject: a rank of the job, or a place, which is a node's.

A report of a stage is an event. Several stages may be the same event.
"""

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, TypeAlias

from taskd.wire.kinds import JobRank, NodeRank
from taskd.wire.messages import Ledger, Stage


class Event(Enum):
    """The names of the events."""

    __hash__ = object.__hash__  # the default calls Python code, and members are what they are by identity

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
    ANSWERED = "answered"
    ECHOED = "echoed"
    OVERTAKEN = "overtaken"
    ISOLATED = "isolated"
    EXPIRED = "expired"
    KEPT = "processes kept"
    RESTARTED = "all start anew"
    UNDECIDED = "no quorum"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Formed:
    """Enough nodes have reported: the job is there. `ledger` is a former manager's, if there was one."""

    kind: ClassVar[Event] = Event.FORMED
    ledger: Ledger | None


@dataclass(frozen=True, slots=True)
class Lost:
    """A rank's process has ended, other than with status 0."""

    kind: ClassVar[Event] = Event.LOST
    rank: JobRank


@dataclass(frozen=True, slots=True)
class Started:
    """A rank's process runs."""

    kind: ClassVar[Event] = Event.STARTED
    rank: JobRank


@dataclass(frozen=True, slots=True)
class Paused:
    """A rank has left its collectives."""

    kind: ClassVar[Event] = Event.PAUSED
    rank: JobRank


@dataclass(frozen=True, slots=True)
class Joined:
    """A rank is in the groups of the new world."""

    kind: ClassVar[Event] = Event.JOINED
    rank: JobRank


@dataclass(frozen=True, slots=True)
class Restored:
    """A rank holds the state to go on with."""

    kind: ClassVar[Event] = Event.RESTORED
    rank: JobRank


@dataclass(frozen=True, slots=True)
class Committed:
    """A rank has committed a step of this generation."""

    kind: ClassVar[Event] = Event.COMMITTED
    rank: JobRank


@dataclass(frozen=True, slots=True)
class Finished:
    """A rank's resilient function has returned."""

    kind: ClassVar[Event] = Event.FINISHED
    rank: JobRank


@dataclass(frozen=True, slots=True)
class Exited:
    """A rank's process has ended with status 0."""

    kind: ClassVar[Event] = Event.EXITED
    rank: JobRank


@dataclass(frozen=True, slots=True)
class Dumped:
    """A rank has written its part of a checkpoint."""

    kind: ClassVar[Event] = Event.DUMPED
    rank: JobRank


@dataclass(frozen=True, slots=True)
class NodeLost:
    """An agent is gone, and with it every rank of its node."""

    kind: ClassVar[Event] = Event.NODE_LOST
    place: NodeRank
    text: str = ""


@dataclass(frozen=True, slots=True)
class NodeLeaves:
    """torchrun has ended on a node."""

    kind: ClassVar[Event] = Event.NODE_LEAVES
    place: NodeRank


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node may wait for a place."""

    kind: ClassVar[Event] = Event.CANDIDATE


@dataclass(frozen=True, slots=True)
class Drained:
    """A node is to be emptied: an operator wants it so, or it is slow."""

    kind: ClassVar[Event] = Event.DRAINED
    place: NodeRank
    reason: str


@dataclass(frozen=True, slots=True)
class Hung:
    """No progress for longer than the job's rhythm explains."""

    kind: ClassVar[Event] = Event.HUNG


@dataclass(frozen=True, slots=True)
class Answered:
    """All that were probed have answered."""

    kind: ClassVar[Event] = Event.ANSWERED


@dataclass(frozen=True, slots=True)
class Echoed:
    """Perhaps enough nodes have said that they know of the next world."""

    kind: ClassVar[Event] = Event.ECHOED


@dataclass(frozen=True, slots=True)
class Overtaken:
    """An agent carries a newer world, or one that another has planned: the job has gone on without this manager."""

    kind: ClassVar[Event] = Event.OVERTAKEN
    place: NodeRank


@dataclass(frozen=True, slots=True)
class Isolated:
    """A node is lost, and too few others were heard for too long."""

    kind: ClassVar[Event] = Event.ISOLATED
    reason: str


@dataclass(frozen=True, slots=True)
class Expired:
    """The phase has lasted for as long as it may."""

    kind: ClassVar[Event] = Event.EXPIRED


@dataclass(frozen=True, slots=True)
class Kept:
    """The strategy that was chosen keeps the processes that live."""

    kind: ClassVar[Event] = Event.KEPT


@dataclass(frozen=True, slots=True)
class Restarted:
    """The strategy that was chosen starts all processes anew."""

    kind: ClassVar[Event] = Event.RESTARTED


@dataclass(frozen=True, slots=True)
class Undecided:
    """Too few nodes are heard to choose a strategy."""

    kind: ClassVar[Event] = Event.UNDECIDED


@dataclass(frozen=True, slots=True)
class Refused:
    """The fault is not recovered from: why."""

    kind: ClassVar[Event] = Event.REFUSED
    reason: str


OfRank: TypeAlias = Lost | Started | Paused | Joined | Restored | Committed | Finished | Exited | Dumped
OfNode: TypeAlias = NodeLost | NodeLeaves | Candidate | Drained | Overtaken | Isolated
Chosen: TypeAlias = Kept | Restarted | Undecided | Refused
AnyEvent: TypeAlias = OfRank | OfNode | Chosen | Formed | Hung | Answered | Echoed | Expired

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
