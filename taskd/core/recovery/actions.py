"""What the manager's machine asks the runtime to do, and the form of what its handlers ask of the machine itself."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypeAlias

from taskd.core.diagnosis.evidence import Evidence
from taskd.core.diagnosis.findings import Diagnosis
from taskd.core.diagnosis.rhythm import Hang
from taskd.core.recovery.events import AnyEvent
from taskd.core.recovery.phases import AnyPhase
from taskd.core.recovery.record import FaultRecord
from taskd.wire.kinds import JobRank, NodeRank
from taskd.wire.messages import Directive

if TYPE_CHECKING:
    from taskd.core.recovery.job import Job

P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Publish:
    """Send this directive to every agent, now and as the answer to each of their reports."""

    directive: Directive


@dataclass(frozen=True, slots=True)
class Recovered:
    """Record this recovery as a success."""

    record: FaultRecord


@dataclass(frozen=True, slots=True)
class JobEnded:
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

    node_rank: NodeRank
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
    evidence: Mapping[JobRank, Evidence]
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


Action: TypeAlias = Publish | Recovered | Setback | JobEnded | Diagnosed | AskKernel | AskCluster | Superseded | Note


class Effect(NamedTuple):
    """A change of the job's facts that a handler asks for. What it returns is an event, dealt with at once."""

    act: "Callable[..., AnyEvent | None]"
    given: tuple[Any, ...]
    named: Mapping[str, Any]


def do(act: "Callable[Concatenate[Job, float, P], AnyEvent | None]", *given: P.args, **named: P.kwargs) -> Effect:
    """Have `act(job, now_s, …)` done."""
    return Effect(act, given, named)


Next: TypeAlias = tuple[AnyPhase, tuple[Effect, ...]]
"""The phase that comes next, and the effects to carry out then, in this order."""

Handler: TypeAlias = Callable[..., Next]
"""`(phase, event, job, now_s) -> (phase, effects)`, without side effects."""
