"""The frozen policies by which the core decides. `taskd.config` fills them; nothing here reads anything."""

from dataclasses import dataclass
from enum import Enum

from taskd.wire.kinds import JobRank, NodeRank


class SelfCheck(Enum):
    """When a job proves, in its first steps, that it can go on exactly after a fault."""

    AUTO = "auto"
    ALWAYS = "always"
    OFF = "off"


class Strategy(Enum):
    """The six words of the job's `recover-strategy`, in the order in which they are tried."""

    RETRY = "retry"
    RECOVER_IN_PLACE = "recover-in-place"
    RECOVER = "recover"
    ELASTIC_TRAINING = "elastic-training"
    DUMP = "dump"
    EXIT = "exit"


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long each part of a recovery may take, in seconds."""

    confirm_s: float = 2.0
    """A rank came out with an error and no process is known to be lost: wait so long for the news of a loss."""
    pause_s: float = 30.0
    """Survivors must have left their collectives; one that has not is fenced and replaced."""
    pause_limit_s: float = 600.0
    """One that is inside a checkpoint, or alone holds the state, is waited for so long in all."""
    replace_s: float = 600.0
    """A new process must have reached the resilient function (its imports and the script's own set-up)."""
    learn_set_up: bool = True
    """Whether it is given less if the first ones were faster. Where others start them, that tells nothing."""
    join_s: float = 120.0
    """Groups formed and state restored."""
    resume_s: float = 600.0
    """One more step committed by every rank."""
    takeover_s: float = 3.0
    """A new manager waits so long for the nodes of a job that is there before it takes the others for lost."""
    commit_s: float = 5.0
    """Nothing has failed, and the step under way is waited for so long before it is given up."""
    skew_s: float = 0.2
    """The same once a rank has committed it: whoever is in the next step already cannot go on without that one."""
    merge_s: float = 1.0
    """Losses that come within this time of the first are one fault and cost one restart."""
    wait_node_s: float = 270.0
    """For so long the job waits for a node that it has asked the cluster for."""


@dataclass(frozen=True, slots=True)
class Membership:
    """When a silent agent is suspected and when it is taken for dead, in seconds since it was last heard."""

    heartbeat_s: float = 0.25
    suspect_s: float = 0.6
    """Then its kernel is asked; if nobody listens there, it is dead."""
    dead_s: float = 10.0
    """An agent whose port still answers, as that of a stopped process does, is given so long."""


@dataclass(frozen=True, slots=True)
class Tempo:
    """How patient to be. Seconds, and multiples of the usual step."""

    first_s: float = 1800.0
    """Without a rhythm: until the first step, until few steps are known, and until the first step after a recovery."""
    phase_s: float = 3600.0
    """In an announced phase of a sort that has not been seen."""
    floor_s: float = 2.0
    factor: float = 3.0
    early_factor: float = 40.0
    few_steps: int = 20
    settled_steps: int = 200
    slack: float = 2.0
    """Of the longest gap that was seen."""
    early_first_s: float = 60.0
    """What is proven is looked for without regard to gaps; so early where there is no rhythm yet."""
    unproven_s: float = 600.0
    """Who may be at work is waited for so long after it was told..."""
    unproven_gaps: float = 3.0
    """... and so many times the longest gap that the job has shown."""

    @property
    def first_look_s(self) -> float:
        """Without a rhythm, what is proven is looked for after this time."""
        return min(self.first_s, max(self.floor_s, self.early_first_s))


@dataclass(frozen=True, slots=True)
class NodeCheckPolicy:
    """How long nodes that are checked are waited for, in seconds, and how different they may be."""

    timeout_s: float = 300.0
    """A round of trials."""
    gather_s: float = 600.0
    """All nodes of a job that forms, before those that are there are checked without the others."""
    last_call_s: float = 30.0
    """The same when as many are there as torchrun's MIN of `--nnodes=MIN:MAX`."""
    margin: float = 2.0
    """So many times slower than the others a node may compute. CPUs that several nodes share differ by 1.5."""


@dataclass(frozen=True, slots=True)
class StrategyPolicy:
    """What may be done about a fault."""

    allowed: tuple[Strategy, ...] = (Strategy.RETRY, Strategy.RECOVER_IN_PLACE, Strategy.RECOVER, Strategy.EXIT)
    sized_wait_s: float | None = None
    """torchrun's `--nnodes=MIN:MAX` allows elastic training, after so long a wait. None: only `allowed` counts."""
    min_nodes: int = 1
    """Elastic training goes on with no fewer nodes."""
    dump_to: bytes = b""
    """The directory to write a checkpoint into; empty if there is none."""
    restart_all: bool = True
    """Whether all processes may be started anew. Where others do that by themselves, the job ends instead."""
    replace_corrupted: bool = False
    """Whether a rank whose state is no more that of its replicas is replaced, or only told of."""


@dataclass(frozen=True, slots=True)
class BudgetPolicy:
    """How often something may be done about faults."""

    max_restarts: int | None = None
    """Recoveries that may be spent; None takes the number that the agents bring from `--max_restarts`."""
    window_s: float | None = None
    """Only the recoveries of so many last seconds count against `max_restarts`; None counts all of the job."""
    max_attempts: int = 3
    """Worlds that may be tried for one fault before its strategy counts as failed."""
    repeats: int = 3
    """Faults of one rank, at one step, with one cause, without a committed step between them, that end the job."""


@dataclass(frozen=True, slots=True)
class Policy:
    """All that the manager's core needs to know about a job."""

    job_id: str
    node_count: int
    ranks_per_node: int
    pipeline_stages: int = 1
    """Ranks are numbered stage by stage."""
    recover_hangs: bool = True
    """Whether a hang is recovered from, or only told."""
    recover_slow: bool = False
    """Whether a node that has become slow gives its place to a spare, or is only told of."""
    strategies: StrategyPolicy = StrategyPolicy()
    budget: BudgetPolicy = BudgetPolicy()
    tempo: Tempo = Tempo()
    """When silence is a hang."""
    deadlines: Deadlines = Deadlines()
    membership: Membership = Membership()
    node_check: NodeCheckPolicy = NodeCheckPolicy()

    def stage_of(self, rank: JobRank) -> int:
        """The stage of the pipeline that a rank is in."""
        return rank * self.pipeline_stages // self.world_size

    def place_of(self, rank: JobRank) -> NodeRank:
        """The place that owns a rank."""
        return NodeRank(rank // self.ranks_per_node)

    @property
    def world_size(self) -> int:
        """Ranks in the full world."""
        return self.node_count * self.ranks_per_node
