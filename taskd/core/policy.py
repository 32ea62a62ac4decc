"""Frozen policies for the core's decisions. `taskd.config` fills them; this module reads nothing."""

from dataclasses import dataclass
from enum import Enum

from taskd.wire.kinds import JobRank, NodeRank


class SelfCheck(Enum):
    """Mode of the self-check: in its first steps, a job proves that it can continue exactly after a fault."""

    AUTO = "auto"
    ALWAYS = "always"
    OFF = "off"


class Strategy(Enum):
    """The six values of the job's `recover-strategy`, in the order in which they are tried."""

    RETRY = "retry"
    RECOVER_IN_PLACE = "recover-in-place"
    RECOVER = "recover"
    ELASTIC_TRAINING = "elastic-training"
    DUMP = "dump"
    EXIT = "exit"


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Time limits for the parts of a recovery, in seconds."""

    confirm_s: float = 2.0
    """Wait for the report of a lost process, after a rank left with an error and no loss is known."""
    pause_s: float = 30.0
    """Limit for survivors to leave their collectives. A later rank is fenced and replaced."""
    pause_limit_s: float = 600.0
    """Total limit for a rank that writes a checkpoint, or that alone holds the state."""
    replace_s: float = 600.0
    """Limit for a new process to reach the resilient function (its imports and the script's own set-up)."""
    learn_set_up: bool = True
    """True if a new process gets less time where the first ones were faster.

    If another launcher starts the processes, their times give no measure.
    """
    join_s: float = 120.0
    """Limit for forming the groups and restoring the state."""
    resume_s: float = 600.0
    """Limit for every rank to commit one more step."""
    takeover_s: float = 3.0
    """Wait of a new manager for the nodes of an existing job, before it counts the missing ones as lost."""
    commit_s: float = 5.0
    """Limit for the step under way when nothing has failed; then the step is given up."""
    skew_s: float = 0.2
    """Limit for the same once a rank has committed the step. A rank in the next step cannot continue without it."""
    merge_s: float = 1.0
    """Time after the first loss in which further losses belong to the same fault. They cost one restart in all."""
    wait_node_s: float = 270.0
    """Wait for a node that the job has requested from the cluster."""


@dataclass(frozen=True, slots=True)
class Membership:
    """Silence after which an agent is suspected or counts as dead, in seconds since its last message."""

    heartbeat_s: float = 0.25
    suspect_s: float = 0.6
    """Silence after which the agent's kernel is probed. If no process listens on the port, the agent is dead."""
    dead_s: float = 10.0
    """Silence after which an agent is dead although its port answers, as that of a stopped process does."""


@dataclass(frozen=True, slots=True)
class Tempo:
    """Patience with a silent job, in seconds and in multiples of the usual step."""

    first_s: float = 1800.0
    """Limit without a rhythm: until the first step, until `few_steps`, and until the first step after a recovery."""
    phase_s: float = 3600.0
    """Limit in an announced phase of a kind that is new to the job."""
    floor_s: float = 2.0
    factor: float = 3.0
    early_factor: float = 40.0
    few_steps: int = 20
    settled_steps: int = 200
    slack: float = 2.0
    """Multiple of the longest gap seen that is still no hang."""
    early_first_s: float = 60.0
    """Silence after which proof of a hang is sought while there is no rhythm yet. Known gaps do not delay it."""
    unproven_s: float = 600.0
    """Wait for a rank that may be at work, after its suspected hang was reported..."""
    unproven_gaps: float = 3.0
    """... and at least this multiple of the longest gap that the job has shown."""

    @property
    def first_look_s(self) -> float:
        """Silence after which proof of a hang is sought while there is no rhythm, within the other limits."""
        return min(self.first_s, max(self.floor_s, self.early_first_s))


@dataclass(frozen=True, slots=True)
class NodeCheckPolicy:
    """Time limits of the node check, in seconds, and the allowed difference between nodes."""

    timeout_s: float = 300.0
    """Limit for a round of trials."""
    gather_s: float = 600.0
    """Wait for all nodes of a job that forms. Then the nodes present are checked without the others."""
    last_call_s: float = 30.0
    """The same wait once the MIN of torchrun's `--nnodes=MIN:MAX` nodes are present."""
    margin: float = 2.0
    """Factor by which a node may compute more slowly than the others. CPUs that nodes share differ by 1.5."""


@dataclass(frozen=True, slots=True)
class StrategyPolicy:
    """Strategies that are allowed after a fault."""

    allowed: tuple[Strategy, ...] = (Strategy.RETRY, Strategy.RECOVER_IN_PLACE, Strategy.RECOVER, Strategy.EXIT)
    sized_wait_s: float | None = None
    """Wait after which torchrun's `--nnodes=MIN:MAX` allows elastic training. None: only `allowed` counts."""
    min_nodes: int = 1
    """Fewest nodes with which elastic training continues."""
    dump_to: bytes = b""
    """Directory for a checkpoint; empty if there is none."""
    restart_all: bool = True
    """True if all processes may be started anew. If another launcher does that itself, the job ends instead."""
    replace_corrupted: bool = False
    """True to replace a rank whose state no longer equals that of its replicas, False to only report it."""


@dataclass(frozen=True, slots=True)
class BudgetPolicy:
    """Limits on the number of recoveries."""

    max_restarts: int | None = None
    """Recoveries that the job may use; None takes the number of `--max_restarts` that the agents report."""
    window_s: float | None = None
    """Age up to which a recovery counts against `max_restarts`; None counts all recoveries of the job."""
    max_attempts: int = 3
    """Worlds that may be tried for one fault before its strategy counts as failed."""
    repeats: int = 3
    """Faults of one rank, step and cause, with no step committed between them, that start all processes anew.

    As many again after such starts end the job. So do as many starts that fail alike, if restarts have no set limit.
    """


@dataclass(frozen=True, slots=True)
class Policy:
    """All facts and limits that the manager's core needs about a job."""

    job_id: str
    node_count: int
    ranks_per_node: int
    pipeline_stages: int = 1
    """Number of stages of the pipeline. Ranks are numbered stage by stage."""
    recover_hangs: bool = True
    """True to recover from a hang, False to only report it."""
    recover_slow: bool = False
    """True to give the place of a node that has become slow to a spare, False to only report it."""
    strategies: StrategyPolicy = StrategyPolicy()
    budget: BudgetPolicy = BudgetPolicy()
    tempo: Tempo = Tempo()
    """Limits after which silence is a hang."""
    deadlines: Deadlines = Deadlines()
    membership: Membership = Membership()
    node_check: NodeCheckPolicy = NodeCheckPolicy()

    def stage_of(self, rank: JobRank) -> int:
        """Return the stage of the pipeline that a rank belongs to."""
        return rank * self.pipeline_stages // self.world_size

    def place_of(self, rank: JobRank) -> NodeRank:
        """Return the place that owns a rank."""
        return NodeRank(rank // self.ranks_per_node)

    @property
    def world_size(self) -> int:
        """Number of ranks in the full world."""
        return self.node_count * self.ranks_per_node
