"""What travels between manager and agents, and between an agent and its workers.

Rules:

1. Every struct is frozen and tagged by its class name. Unknown fields are ignored, unknown tags are refused.
2. State, not events: an agent sends the whole `NodeStatus`, the manager the whole `Directive`, again and again. The
   newest sequence number wins. Every one names its generation; one of an older generation changes nothing.
3. Times are seconds on the sender's `CLOCK_MONOTONIC` unless the name says otherwise.
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
    """Where one rank's process stands."""

    __hash__ = object.__hash__  # the default calls Python code, and members are what they are by identity

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
    """What a rank's training state is worth at the moment it paused."""

    CLEAN = "clean"  # exactly the state of its committed step
    STEPPED = "stepped"  # every optimizer has stepped once since the last commit
    TORN = "torn"  # inside an optimizer step, or behind a failed restore
    EMPTY = "empty"  # a newcomer that has built its model and has no state yet


class RankStatus(StateHeld, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One rank, as its agent knows it."""

    rank: OfJob
    incarnation: MaybeCounter
    generation: Counter
    stage: Stage
    step: MaybeCounter = -1
    condition: Condition = Condition.EMPTY
    pid: Pid = 0
    warm: bool = False
    cause: Line = ""  # of DEAD: "signal 9 (SIGKILL)", "exit code 1"; of PAUSED: the exception it came out with
    error: Line = ""  # of DEAD and PAUSED: the error alone, as the process has it; empty if none is known
    status: Status | None = None  # of DEAD: as Python's subprocess has it, negative for a signal
    raised: bool = False  # of DEAD: the process itself has said by what error it ends
    at_s: Seconds = 0.0  # when the stage was reached
    kind: Name = ""  # of DEAD: what kind of fault the process itself has said it is (`core.faults.FaultKind`)
    term: Counter = 0  # of the manager that had it started; 0 if torchrun did
    no_rebuild: Line = ""  # why no world can be rebuilt with this process; empty if one can
    no_newcomer: Line = ""  # why no newcomer can come into a world of this process's job; empty if one can
    anew: Line = ""  # why all processes are to start anew at once, although nothing has failed; empty if they need not


class Place(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """A place of the job and the agent that holds it."""

    node_rank: OfNode
    agent_id: Name


class Ledger(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a new manager must know of the former ones. Agents give back the newest that they were given."""

    term: Counter = 0  # the manager that wrote it; agents obey the highest term they know
    places: Annotated[tuple[OfNode, ...], Many] = ()  # those of the present world; the others are absent from it
    agreed: Annotated[tuple[Place, ...], Many] = ()  # nodes of the last world; most of them must know of the next
    spent: Amount = 0  # restarts
    excluded: Annotated[tuple[Name, ...], Many] = ()  # agents that get no place any more
    cold: bool = False  # no warm process becomes a rank: one has failed in its set-up


class Progress(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The newest step that any rank of a node has committed while it trains, and how long ago that was."""

    step: MaybeCounter
    age_s: Seconds


class RankSpan(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The mean of `steps` steps of a rank, of which `step` is the last: what the rank needed itself, and what not."""

    rank: OfJob
    step: MaybeCounter
    steps: Counter
    own_s: Seconds
    waited_s: Seconds  # in collectives
    data_s: Seconds = 0.0  # for batches
    work: Measured = 0.0  # how large those were; 0 if that is not known


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """Agent to manager: all of one node, at each change and as the heartbeat. A candidate: `node_rank` -1, no ranks."""

    job_id: Name
    node_rank: MaybeNode  # the place that it holds
    agent_id: Name  # random per agent process: a restarted agent is another one
    sequence: Counter
    node_count: Amount  # as torchrun's rendezvous has formed it: with `--nnodes=MIN:MAX` perhaps fewer than the places
    ranks: Annotated[tuple[RankStatus, ...], Some]
    store_host: Name
    store_port: Port
    store_key: Name = ""  # what all keys begin with there: a store asks nobody who he is
    standbys: Amount
    max_restarts: Amount
    generation: Counter  # newest generation this agent has heard of
    sent_s: Seconds = 0.0
    leaving: bool = False
    deserted: bool = False  # the agent has ended by an error: this is its last word, and torchrun decides there
    host: Name = ""  # its name, for people
    cores: Amount = 0  # of the CPU, that its processes may use; 0 if that is not known
    wants: MaybeNode = NodeRank(-1)  # the place that its launcher gave it
    min_nodes: Amount = 0  # MIN of torchrun's `--nnodes=MIN:MAX`; 0 if it names one number
    ledger: Ledger = Ledger()  # to the manager that has written it, only its term
    proof: Name = ""  # that it speaks for itself: `agent_id` is its hash
    heard: Counter = 0  # sequence number of the newest directive that the manager has sent here
    progress: Progress | None = None  # None if no rank trains
    spans: Annotated[tuple[RankSpan, ...], Some] = ()  # those that no report before had
    check: CheckState | None = None  # None if the node is not checked, and was not asked to help


class EvidenceReport(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Agent to manager: what the node knows of its ranks' processes, asked for or because one of them has ended."""

    job_id: Name
    agent_id: Name
    probe: Counter  # the newest that it answers; 0 if it was not asked
    evidence: Annotated[dict[OfJob, msgspec.Raw], Some]  # by rank: `core.evidence.Evidence`
    proof: Name = ""  # as in `NodeStatus`


class WorldPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the ranks of one generation come together."""

    generation: Number
    world_size: Amount
    store_host: Name
    store_port: Port
    store_key: Name = ""
    target_step: MaybeCounter  # the step that every rank holds when training resumes
    adopt: Annotated[
        tuple[OfWorld, ...], Many
    ]  # by their rank in this world: they have stepped but not committed, and that counts as `target_step`
    transfers: Annotated[tuple[Transfer, ...], Many]  # by their rank in this world
    timeout_s: Seconds
    loads: Annotated[tuple[Load, ...], Many] = ()  # these ranks go back to copies of the target step
    copied: MaybeCounter = -1  # the newest step of which a copy of every state is known; -1: none
    saved: bool = False  # all go back to the checkpoint of the target step
    members: Annotated[
        tuple[OfJob, ...], Many
    ] = ()  # the job's ranks that make up this world, in its order; none: 0 to world_size - 1
    replicas: Amount = 0  # ranks of the full world, which the global batch is made for; 0: as many as members
    dump: Line = ""  # the reason to write a checkpoint of the target step, after which the job ends
    dump_to: Raw = b""  # the directory that the manager was told; none: the rank's own TASKD_CHECKPOINT_DIR

    @property
    def ranks(self) -> tuple[JobRank, ...]:
        """The job's ranks that make up this world, in its order."""
        return self.members or tuple(map(JobRank, range(self.world_size)))


class Order(Enum):
    """What a rank is to do."""

    FORM = "form"  # not all nodes have reported yet
    RUN = "run"  # nothing to do: train
    PAUSE = "pause"  # leave the collectives of all older generations and report
    JOIN = "join"  # form the world of `plan`, restore, train
    RELEASE = "release"  # every rank has finished: leave the resilient function
    STOP = "stop"  # end the job


class RankOrder(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The process wanted for one rank; an agent whose process is of a lower incarnation fences it and starts one."""

    rank: OfJob
    incarnation: MaybeNumber  # -1: of a rank that has had no process yet
    joins: bool = False  # it comes into a living world (waits for a plan), or starts a fresh one with all the others


class Directive(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """Manager to every agent: the state wanted. Sent at each change and in answer to each heartbeat."""

    job_id: Name
    sequence: Counter
    generation: Number
    order: Order
    ranks: Annotated[tuple[RankOrder, ...], Many] = ()
    plan: WorldPlan | None = None
    reason: Line = ""
    exit_code: Status = 0
    node_count: Amount = 0  # places of the job
    places: Annotated[tuple[Place, ...], Many] = ()  # who holds one; whoever is not named holds none
    ledger: Ledger = Ledger()
    at_commit: bool = False  # PAUSE: when the step under way is committed; nothing has failed
    store_host: Name = ""  # where the processes of a world that starts anew meet; none: where torchrun says
    store_port: Port = 0
    store_key: Name = ""
    probe: Counter = 0  # each new number is answered once, by a `EvidenceReport`
    records: Name = ""  # the mark of the folder with the job's records; agents that see it keep theirs there


class Heard(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Manager to an agent whose report has changed nothing: the directive of this number, which it has, still holds."""

    sequence: Counter


class Refusal(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Manager to an agent that it will not serve (another job, a node rank out of range, a second agent)."""

    reason: Line


class Drain(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Operator to manager: move the ranks of this node elsewhere. `node` is a place's number or a node's name."""

    job_id: Name
    node: Name


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Manager to operator: whether it is being done, or why not."""

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
    """Worker to agent: the stage that it has reached."""

    generation: Counter
    stage: Stage
    step: MaybeCounter
    condition: Condition
    cause: Line = ""
    at_s: Seconds = 0.0


class SelfReport(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Worker to agent: an exception leaves the resilient function that this process does not outlive."""

    cause: Line
    kind: Name = ""


class Refuses(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Worker to agent: why it cannot be recovered in place, told beforehand. The newest counts; empty: it can.

    `anew`: why all processes are to start anew at once.
    """

    no_rebuild: Line = ""
    no_newcomer: Line = ""
    anew: Line = ""


class SetupRecorded(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Worker to agent: the file with the results of its set-up's collectives is written, and has this digest."""

    digest: Name


class SawNonFinite(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Worker to agent: the first step of which this rank's loss was NaN or infinite."""

    step: MaybeCounter
    what: Name
    value: Name


class Modules(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Installed modules that the ranks import: from a worker to the manager, and to templates, also of spare nodes."""

    names: Annotated[tuple[Name, ...], Many]


class Pause(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Agent to worker: leave the collectives of every generation below `generation` and report.

    `at_commit`: at the end of the step. It is told again, without that, if a peer was faster and the step cannot end.
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
    sequence: Counter = 0  # of the directive: a process that connects anew is told again what is wanted


class Abandon(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Agent to worker: nobody will recover this; let the exception that you came out with take its course."""

    reason: Line


class PeersKey(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Agent to worker, which has just connected: by what the job's ranks know one another. Never log one."""

    key: Name  # hexadecimal, made of the job's secret; "" without one


class AccountRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Agent to worker: say what you are about. Answered by an `Account`, if Python can run there."""

    number: Counter


FromAgent = NodeStatus | EvidenceReport | Drain | Modules | Inspect
FromManager = Directive | Heard | Refusal | Answer | Modules | CheckOrder | Cleared | Dismissed | Inspection
FromLocal = Hello | WorkerReport | Refuses | SelfReport | Account | SawNonFinite | SetupRecorded | Modules | Probed
ToLocal = Pause | Join | Release | Abandon | PeersKey | AccountRequest | Become | Fork | Modules | Prepare | RunCheck
