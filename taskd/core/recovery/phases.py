"""The phases of a job. Each holds what only it needs, and is replaced as a whole.

Rules:

1. Data only. `table.py` says which event leads from which phase to which, and `handlers/` what is done.
2. All times are seconds on the manager's clock. `since_s` is when the phase was entered.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import ClassVar, TypeAlias

from taskd.core.rendezvous import NOWHERE, Rendezvous
from taskd.wire.kinds import JobRank, NodeRank


class Phase(Enum):
    """The names of the phases."""

    __hash__ = object.__hash__  # the default calls Python code, and members are what they are by identity

    FORMING = "forming"
    RUNNING = "running"
    STRAYED = "strayed"
    SUSPECTING = "suspecting"
    CHOOSING = "choosing"
    AWAITING_QUORUM = "awaiting quorum"
    REARRANGING = "rearranging"
    PAUSING = "pausing"
    ANNOUNCING = "announcing"
    JOINING = "joining"
    RESUMING = "resuming"
    RESTARTING = "restarting"
    FINISHING = "finishing"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Forming:
    """Not all nodes have reported yet. `since_s` is 0 until the first one has."""

    kind: ClassVar[Phase] = Phase.FORMING
    since_s: float = 0.0
    told: bool = False
    """The operator knows that nodes are missing."""


@dataclass(frozen=True, slots=True)
class Running:
    """The ranks train."""

    kind: ClassVar[Phase] = Phase.RUNNING
    since_s: float


@dataclass(frozen=True, slots=True)
class Strayed:
    """A rank came out of its collectives, or failed early: news that explains it is awaited until `until_s`."""

    kind: ClassVar[Phase] = Phase.STRAYED
    since_s: float
    until_s: float


@dataclass(frozen=True, slots=True)
class Suspecting:
    """The job makes no progress: every rank is probed, and the answers are awaited until `until_s`."""

    kind: ClassVar[Phase] = Phase.SUSPECTING
    since_s: float
    until_s: float


@dataclass(frozen=True, slots=True)
class Choosing:
    """A strategy is being chosen. No report is taken in meanwhile."""

    kind: ClassVar[Phase] = Phase.CHOOSING
    since_s: float


@dataclass(frozen=True, slots=True)
class AwaitingQuorum:
    """Too few nodes are heard to choose a strategy; what happens until enough are belongs to the same fault."""

    kind: ClassVar[Phase] = Phase.AWAITING_QUORUM
    since_s: float


@dataclass(frozen=True, slots=True)
class Rearranging:
    """Nothing has failed, and another world is wanted: the ranks pause at the end of their step."""

    kind: ClassVar[Phase] = Phase.REARRANGING
    since_s: float
    drained: NodeRank | None = None
    """A place that is given to another node as soon as all have paused."""
    first_out_s: float | None = None
    """When the first rank had paused."""


@dataclass(frozen=True, slots=True)
class Pausing:
    """Survivors leave their collectives, new processes start."""

    kind: ClassVar[Phase] = Phase.PAUSING
    since_s: float
    drained: NodeRank | None = None
    probed_s: float | None = None
    """When the late ones were probed, if the answers are awaited."""
    spared: Mapping[JobRank, float] = field(default_factory=dict)
    """Late ranks with a good reason, and until when they are waited for before they are probed again."""


@dataclass(frozen=True, slots=True)
class Announcing:
    """All have paused. Enough nodes of the last world have to know of the next one before it is built."""

    kind: ClassVar[Phase] = Phase.ANNOUNCING
    since_s: float


@dataclass(frozen=True, slots=True)
class Joining:
    """Groups are formed and state is restored, until `until_s`. `strayed`: a rank came out, and that ends it sooner."""

    kind: ClassVar[Phase] = Phase.JOINING
    since_s: float
    until_s: float
    strayed: bool = False


@dataclass(frozen=True, slots=True)
class Resuming:
    """The first step of the new world, until `until_s`. `strayed` as above."""

    kind: ClassVar[Phase] = Phase.RESUMING
    since_s: float
    until_s: float
    strayed: bool = False
    looks_s: float = inf
    """When the ranks are asked what they wait in, or their answers are looked at."""
    asked: bool = False


@dataclass(frozen=True, slots=True)
class Restarting:
    """All processes start anew. They meet at the same place, whenever they start."""

    kind: ClassVar[Phase] = Phase.RESTARTING
    since_s: float
    meeting: Rendezvous = NOWHERE


@dataclass(frozen=True, slots=True)
class Finishing:
    """Every rank has finished and was let go: processes end, or come back.

    `until_s`: one was lost, and until then it is waited for the others to be inside again.
    """

    kind: ClassVar[Phase] = Phase.FINISHING
    since_s: float
    until_s: float | None = None


@dataclass(frozen=True, slots=True)
class Stopped:
    """The job has ended."""

    kind: ClassVar[Phase] = Phase.STOPPED
    since_s: float


Training: TypeAlias = Running | Strayed | Suspecting
Pauses: TypeAlias = AwaitingQuorum | Rearranging | Pausing | Announcing
Building: TypeAlias = Pauses | Joining | Resuming
AnyPhase: TypeAlias = Forming | Training | Choosing | Building | Restarting | Finishing | Stopped

LIVE = (Phase.RUNNING, Phase.STRAYED, Phase.SUSPECTING)
HALTED = (Phase.AWAITING_QUORUM, Phase.REARRANGING, Phase.PAUSING, Phase.ANNOUNCING)
WORLD = (Phase.JOINING, Phase.RESUMING)
BUILDING = (*HALTED, *WORLD)
