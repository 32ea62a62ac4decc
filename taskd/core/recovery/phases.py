"""Phases of a job. Each phase holds only its own data, and is replaced as a whole.

Rules:

1. The phases are data only. `table.py` lists which event leads from which phase to which. `handlers/` decides.
2. All times are seconds on the manager's clock. `since_s` is the time at which the phase was entered.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import ClassVar, TypeAlias

from taskd.core.rendezvous import NOWHERE, Rendezvous
from taskd.wire.kinds import JobRank, NodeRank


class Phase(Enum):
    """Names of the phases."""

    __hash__ = object.__hash__  # the default runs Python code, and members are compared by identity

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
    """The operator has been warned that nodes are missing."""


@dataclass(frozen=True, slots=True)
class Running:
    """The ranks train."""

    kind: ClassVar[Phase] = Phase.RUNNING
    since_s: float


@dataclass(frozen=True, slots=True)
class Strayed:
    """A rank left its collectives, or failed early. News that explains it is awaited until `until_s`."""

    kind: ClassVar[Phase] = Phase.STRAYED
    since_s: float
    until_s: float


@dataclass(frozen=True, slots=True)
class Suspecting:
    """The job makes no progress. Every rank is probed, and the answers are awaited until `until_s`."""

    kind: ClassVar[Phase] = Phase.SUSPECTING
    since_s: float
    until_s: float


@dataclass(frozen=True, slots=True)
class Choosing:
    """A strategy is being chosen. No report is processed meanwhile."""

    kind: ClassVar[Phase] = Phase.CHOOSING
    since_s: float


@dataclass(frozen=True, slots=True)
class AwaitingQuorum:
    """Too few nodes report to choose a strategy. Until enough do, all losses belong to the same fault."""

    kind: ClassVar[Phase] = Phase.AWAITING_QUORUM
    since_s: float


@dataclass(frozen=True, slots=True)
class Rearranging:
    """Nothing has failed, but another world is wanted. The ranks pause at the end of their step."""

    kind: ClassVar[Phase] = Phase.REARRANGING
    since_s: float
    drained: NodeRank | None = None
    """Place that is given to another node as soon as all ranks have paused."""
    first_out_s: float | None = None
    """Time at which the first rank had paused."""


@dataclass(frozen=True, slots=True)
class Pausing:
    """Survivors leave their collectives, and new processes start."""

    kind: ClassVar[Phase] = Phase.PAUSING
    since_s: float
    drained: NodeRank | None = None
    probed_s: float | None = None
    """Time at which the late ranks were probed, while the answers are awaited."""
    spared: Mapping[JobRank, float] = field(default_factory=dict)
    """Late ranks with a good reason, and the time until which each is waited for before the next probe."""


@dataclass(frozen=True, slots=True)
class Announcing:
    """All ranks have paused. Enough nodes of the last world must know the next one before it is built."""

    kind: ClassVar[Phase] = Phase.ANNOUNCING
    since_s: float


@dataclass(frozen=True, slots=True)
class Joining:
    """Groups are formed and state is restored, until `until_s`.

    `strayed`: a rank left the new world, which ends the phase sooner.
    """

    kind: ClassVar[Phase] = Phase.JOINING
    since_s: float
    until_s: float
    strayed: bool = False


@dataclass(frozen=True, slots=True)
class Resuming:
    """The first step of the new world, until `until_s`. `strayed`: as in `Joining`."""

    kind: ClassVar[Phase] = Phase.RESUMING
    since_s: float
    until_s: float
    strayed: bool = False
    looks_s: float = inf
    """Time of the next probe for the collectives that ranks wait in, or of the check of the answers."""
    asked: bool = False


@dataclass(frozen=True, slots=True)
class Restarting:
    """All processes restart. They meet at the same rendezvous, whenever they start."""

    kind: ClassVar[Phase] = Phase.RESTARTING
    since_s: float
    meeting: Rendezvous = NOWHERE


@dataclass(frozen=True, slots=True)
class Finishing:
    """Every rank has finished and was released. Processes end, or call another resilient function.

    `until_s`: a process was lost, and until then the others may enter a resilient function again.
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
