"""Messages between manager and agents, and between an agent and its workers.

Rules:

1. Every struct is frozen. Messages are tagged by their class name. Unknown fields are ignored, unknown tags rejected.
2. Messages carry state, not events. An agent sends the whole `NodeStatus`, and the manager the whole `Directive`, again
   and again. The newest sequence number wins. Each names its generation; an older generation changes nothing.
3. Times are seconds on the sender's `CLOCK_MONOTONIC`, unless the field's name states another clock.
4. Every field has a bound (`wire.bounds`).
"""

from enum import Enum
from typing import Annotated

import msgspec

from taskd.wire.accounts import Account
from taskd.wire.bounds import (
    Amount,
    Counter,
    Line,
    Many,
    MaybeCounter,
    MaybeNode,
    MaybeNumber,
    MaybeRank,
    Measured,
    Name,
    Number,
    OfJob,
    OfNode,
    OfWorld,
    Pid,
    Port,
    Raw,
    Seconds,
    Some,
    Status,
)
from taskd.wire.checks import CheckOrder, CheckState, Cleared, Dismissed, Inspect, Inspection
from taskd.wire.kinds import JobRank, NodeRank
from taskd.wire.standbys import Become, Fork, Prepare, Probed, RunCheck
from taskd.wire.state import Load, StateHeld, Transfer


class Stage(Enum):
    """Stage that one rank's process has reached."""

    __hash__ = object.__hash__  # the default calls Python code, and members are compared by identity

    STARTING = "starting"  # the process runs; it has not entered the resilient function
    TRAINING = "training"  # inside the resilient function, in the groups of its generation
    PAUSED = "paused"  # out of its collectives, waiting for a plan
    JOINED = "joined"  # the groups of its generation are formed
    RESTORED = "restored"  # its state is that of the target step
    COMMITTED = "committed"  # one more step was committed since it joined
    FINISHED = "finished"  # the resilient function returned; waiting for all the others
    DUMPED = "dumped"  # the state of the target step is in a checkpoint
    RELEASED = "released"  # left the resilient function for good
    EXITED = "exited"  # the process ended with status 0
    DEAD = "dead"  # the process ended otherwise, or was fenced


class Condition(Enum):
    """Condition of a rank's training state at the moment it paused."""

    CLEAN = "clean"  # exactly the state of its committed step
    STEPPED = "stepped"  # every optimizer has stepped once since the last commit
    TORN = "torn"  # inside an optimizer step, or after a failed restore
    EMPTY = "empty"  # a newcomer that has built its model and has no state yet


class RankStatus(StateHeld, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """State of one rank, as its agent reports it."""

    rank: OfJob
    incarnation: MaybeCounter
    generation: Counter
    stage: Stage
    step: MaybeCounter = -1
    condition: Condition = Condition.EMPTY
    pid: Pid = 0
    warm: bool = False
    cause: Line = ""  # DEAD: "signal 9 (SIGKILL)", "exit code 1"; PAUSED: the exception that ended its training
    error: Line = ""  # DEAD and PAUSED: the error alone, as the process states it; empty if none is known
    status: Status | None = None  # DEAD: exit status as in Python's subprocess, negative for a signal
    raised: bool = False  # DEAD: the process itself has reported the error that ends it
    at_s: Seconds = 0.0  # when the stage was reached
    kind: Name = ""  # DEAD: kind of the fault, as the process itself reports it (`core.diagnosis.faults.FaultKind`)
    term: Counter = 0  # term of the manager that ordered its start; 0 if torchrun started it
    no_rebuild: Line = ""  # why no world can be rebuilt with this process; empty if one can
    no_newcomer: Line = ""  # why no newcomer can join a world of this process's job; empty if one can
    anew: Line = ""  # why all processes must start anew at once, although nothing has failed; empty if they need not


class Place(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """A place of the job and the agent that holds it."""

    node_rank: OfNode
    agent_id: Name


class Ledger(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Record of the former managers for a new one. Agents return the newest ledger that they received."""

    term: Counter = 0  # term of the manager that wrote it; agents obey the highest term that they have received
    places: Annotated[tuple[OfNode, ...], Many] = ()  # places of the present world; all others are absent from it
    agreed: Annotated[tuple[Place, ...], Many] = ()  # nodes of the last world; most of them must confirm the next
    spent: Amount = 0  # restarts that were used
    excluded: Annotated[tuple[Name, ...], Many] = ()  # agents that get no place any more
    cold: bool = False  # no warm process becomes a rank, because one has failed in its set-up


class Progress(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Newest step that any rank of a node has committed while it trains, and the time since then."""

    step: MaybeCounter
    age_s: Seconds


class RankSpan(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Mean times of `steps` steps of a rank, ending with `step`: the rank's own time, and its waiting times."""

    rank: OfJob
    step: MaybeCounter
    steps: Counter
    own_s: Seconds
    waited_s: Seconds  # time in collectives
    data_s: Seconds = 0.0  # time of waiting for batches
    work: Measured = 0.0  # size of the batches; 0 if unknown


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """Agent to manager: the whole state of one node, at each change and as the heartbeat.

    The report of a candidate has `node_rank` -1 and no ranks.
    """

    job_id: Name
    node_rank: MaybeNode  # the place that the node holds
    agent_id: Name  # random per agent process: a restarted agent has another id
    sequence: Counter
    node_count: Amount  # nodes in torchrun's rendezvous: with `--nnodes=MIN:MAX` perhaps fewer than the places
    ranks: Annotated[tuple[RankStatus, ...], Some]
    store_host: Name
    store_port: Port
    store_key: Name = ""  # prefix of all keys in the store, because a store does not authenticate its clients
    standbys: Amount
    max_restarts: Amount
    generation: Counter  # newest generation that this agent has received
    sent_s: Seconds = 0.0
    leaving: bool = False
    deserted: bool = False  # the agent has ended by an error: this is its last report, and torchrun decides there
    host: Name = ""  # host name, for people
    cores: Amount = 0  # CPU cores that its processes may use; 0 if unknown
    wants: MaybeNode = NodeRank(-1)  # the place that its launcher gave it
    min_nodes: Amount = 0  # MIN of torchrun's `--nnodes=MIN:MAX`; 0 if it names one number
    ledger: Ledger = Ledger()  # reduced to the term if the receiving manager wrote it
    proof: Name = ""  # shows that the sender owns `agent_id`, which is the hash of the proof
    heard: Counter = 0  # sequence number of the newest directive that this agent has received from the manager
    progress: Progress | None = None  # None if no rank trains
    spans: Annotated[tuple[RankSpan, ...], Some] = ()  # spans that no earlier report had
    check: CheckState | None = None  # None if the node is not checked, and does not help to check others


class EvidenceReport(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Agent to manager: the node's evidence of its ranks' processes, on request or because one of them has ended."""

    job_id: Name
    agent_id: Name
    probe: Counter  # number of the newest request that it answers; 0 if there was none
    evidence: Annotated[dict[OfJob, msgspec.Raw], Some]  # by rank: `core.diagnosis.evidence.Evidence`
    proof: Name = ""  # as in `NodeStatus`


class WorldPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Plan by which the ranks of one generation form their world."""

    generation: Number
    world_size: Amount
    store_host: Name
    store_port: Port
    store_key: Name = ""
    target_step: MaybeCounter  # the step that every rank holds when training resumes
    adopt: Annotated[
        tuple[OfWorld, ...], Many
    ]  # ranks in this world that have stepped but not committed: their step counts as `target_step`
    transfers: Annotated[tuple[Transfer, ...], Many]  # by ranks in this world
    timeout_s: Seconds
    loads: Annotated[tuple[Load, ...], Many] = ()  # these ranks go back to copies of the target step
    copied: MaybeCounter = -1  # newest step with a known copy of every state; -1: none
    saved: bool = False  # all ranks go back to the checkpoint of the target step
    members: Annotated[
        tuple[OfJob, ...], Many
    ] = ()  # the job's ranks that make up this world, in its order; none: 0 to world_size - 1
    replicas: Amount = 0  # ranks of the full world, for which the global batch is meant; 0: as many as members
    dump: Line = ""  # the reason to write a checkpoint of the target step, after which the job ends
    dump_to: Raw = b""  # directory from the manager's configuration; none: the rank's own TASKD_CHECKPOINT_DIR

    @property
    def ranks(self) -> tuple[JobRank, ...]:
        """The job's ranks in this world, in its order."""
        return self.members or tuple(map(JobRank, range(self.world_size)))


class Order(Enum):
    """Order to a rank."""

    FORM = "form"  # not all nodes have reported yet
    RUN = "run"  # nothing to do: train
    PAUSE = "pause"  # leave the collectives of all older generations and report
    JOIN = "join"  # form the world of `plan`, restore, train
    RELEASE = "release"  # every rank has finished: leave the resilient function
    STOP = "stop"  # end the job


class RankOrder(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Process that is wanted for one rank. An agent fences a process of a lower incarnation and starts a new one."""

    rank: OfJob
    incarnation: MaybeNumber  # -1: the rank has had no process yet
    joins: bool = False  # True: joins a living world, and waits for a plan; False: starts a fresh world with all others


class Directive(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """Manager to every agent: the wanted state. Sent at each change, and in answer to reports that lack its number."""

    job_id: Name
    sequence: Counter
    generation: Number
    order: Order
    ranks: Annotated[tuple[RankOrder, ...], Many] = ()
    plan: WorldPlan | None = None
    reason: Line = ""
    exit_code: Status = 0
    node_count: Amount = 0  # places of the job
    places: Annotated[tuple[Place, ...], Many] = ()  # holders of places; an agent that is not named holds none
    ledger: Ledger = Ledger()
    at_commit: bool = False  # PAUSE: when the step under way is committed; nothing has failed
    store_host: Name = ""  # store at which the processes of a world that starts anew meet; none: torchrun's own
    store_port: Port = 0
    store_key: Name = ""
    probe: Counter = 0  # an agent answers each new number once, by an `EvidenceReport`
    records: Name = ""  # mark of the folder with the job's records; agents that find the folder keep theirs there


class Heard(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Manager to an agent whose report changed nothing: the directive of this number, which it has, still holds."""

    sequence: Counter


class Refusal(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Manager to an agent that it does not serve (another job, a node rank out of range, a second agent)."""

    reason: Line


class Drain(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Operator to manager: move the ranks of this node elsewhere. `node` is a place's number or a node's name."""

    job_id: Name
    node: Name


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Manager to operator: whether the drain is under way, or why not."""

    granted: bool
    text: Line


# Between an agent and the processes of its node (a Unix socket of the same user).


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """First message of a process. `role` is "worker", "template" or "standby"; `rank` is -1 without one."""

    role: Name
    pid: Pid
    rank: MaybeRank = JobRank(-1)
    incarnation: Counter = 0
    generation: Counter = 0
    threads: Amount = 1


class WorkerReport(StateHeld, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """Worker to agent: the stage that the worker has reached."""

    generation: Counter
    stage: Stage
    step: MaybeCounter
    condition: Condition
    cause: Line = ""
    at_s: Seconds = 0.0


class SelfReport(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Worker to agent: the exception that leaves the resilient function and ends this process."""

    cause: Line
    kind: Name = ""


class Refuses(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Worker to agent: why it cannot be recovered in place, reported in advance. The newest counts; empty: it can.

    `anew`: why all processes must start anew at once.
    """

    no_rebuild: Line = ""
    no_newcomer: Line = ""
    anew: Line = ""


class SetupRecorded(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Worker to agent: the file with the results of its set-up's collectives is written. It has this digest."""

    digest: Name


class SawNonFinite(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Worker to agent: the first step at which this rank's loss was NaN or infinite."""

    step: MaybeCounter
    what: Name
    value: Name


class Modules(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Installed modules that the ranks import: from a worker to the manager, and from there to all templates.

    Spare nodes' templates receive them too.
    """

    names: Annotated[tuple[Name, ...], Many]


class Pause(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Agent to worker: leave the collectives of every generation below `generation` and report.

    `at_commit`: at the end of the step. The order is repeated without it if a peer was faster and the step cannot end.
    """

    generation: Counter
    reason: Line = ""
    at_commit: bool = False


class Join(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Agent to worker: form this world."""

    plan: WorldPlan


class Release(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Agent to worker: all ranks have finished."""

    generation: Counter
    sequence: Counter = 0  # number of the directive: a process that reconnects receives the order again


class Abandon(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Agent to worker: no recovery will follow. The exception that ended its training takes its course."""

    reason: Line


class PeersKey(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Agent to a newly connected worker: the key by which the job's ranks recognize one another. Never log one."""

    key: Name  # hexadecimal, derived from the job's secret; "" without a secret


class AccountRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Agent to worker: request for an account. The worker answers with an `Account` if Python can run there."""

    number: Counter


FromAgent = NodeStatus | EvidenceReport | Drain | Modules | Inspect
FromManager = Directive | Heard | Refusal | Answer | Modules | CheckOrder | Cleared | Dismissed | Inspection
FromLocal = Hello | WorkerReport | Refuses | SelfReport | Account | SawNonFinite | SetupRecorded | Modules | Probed
ToLocal = Pause | Join | Release | Abandon | PeersKey | AccountRequest | Become | Fork | Modules | Prepare | RunCheck
