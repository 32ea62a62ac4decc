"""What the manager knows of one job, and what it orders.

Rules:

1. Handlers read it; only the effects that they return change it (`attempts.py`, `orders.py`, `case.py`, `nodes.py`).
2. Nothing is decided here.
"""

from dataclasses import dataclass, field
from typing import Final

from taskd.core.diagnosis.faults import FaultKind
from taskd.core.membership.quorum import has_quorum
from taskd.core.policy import Policy, Strategy
from taskd.core.recovery.absence import Absence
from taskd.core.recovery.actions import Action
from taskd.core.recovery.budget import EARLY_S, Budget
from taskd.core.recovery.case import Case
from taskd.core.recovery.causes import EARLY, UNKNOWN, Cause, CauseKind, of_report
from taskd.core.recovery.comparing import StateComparison
from taskd.core.recovery.orders import Orders
from taskd.core.recovery.pace import PaceFacts
from taskd.core.recovery.phases import AnyPhase, Pausing
from taskd.core.recovery.record import FaultRecord
from taskd.core.recovery.strategy import is_sized
from taskd.core.recovery.world import World
from taskd.errors import TransitionError
from taskd.wire.kinds import JobRank, NodeRank

SET_UP_S: Final = 60.0
SET_UPS: Final = 10
"""A newcomer that needs longer, and so many times as long as processes that started together, waits for somebody."""


@dataclass(slots=True)
class Incident:
    """One fault, or one change of the world without a fault: what was tried for it so far."""

    record: FaultRecord
    tried: dict[tuple[Strategy, bool], str] = field(default_factory=dict)
    """By strategy, and whether all processes start anew, why it is not tried (again)."""
    failures: int = 0
    """Of the strategy that is being tried."""
    asked_s: dict[NodeRank, float] = field(default_factory=dict)
    """Places for which the cluster was asked for a node, and when."""
    unique: bool = True
    """No other manager can have planned a world of the same number."""
    charged: dict[JobRank, float] = field(default_factory=dict)
    """The losses that the newest restart was spent for, and when that was."""
    over: bool = False
    """It came behind the training function, after the release of some rank."""
    renewed: bool = False
    """All ranks have been given new processes that load copies."""
    verified: int = -1
    """The newest step to go back to; -1 if the state of any may be trusted."""
    echoes: set[str] = field(default_factory=set)
    """Agents that are known to know of the next world."""


@dataclass(slots=True)
class Job:
    """The facts by which handlers decide."""

    policy: Policy
    world: World = field(default_factory=World)
    budget: Budget | None = None
    incident: Incident | None = None
    case: Case = field(default_factory=Case)
    pace: PaceFacts = field(default_factory=PaceFacts)
    absence: Absence = field(default_factory=Absence)
    comparison: StateComparison = field(default_factory=StateComparison)
    orders: Orders = field(default_factory=Orders)
    step: int = -1
    """Newest committed step that any rank has reported since the job, or all of its processes, last started."""
    setup_s: float | None = None
    """The longest that a process which was not alone has needed up to the resilient function."""
    out: list[Action] = field(default_factory=list)

    @property
    def record(self) -> FaultRecord | None:
        """That of the fault under way."""
        return self.incident.record if self.incident is not None else None

    @property
    def under_way(self) -> Incident:
        """The fault that the job is recovering from."""
        if self.incident is None:
            raise TransitionError("a recovery without a fault")
        return self.incident

    # ---- how long is waited for whom

    def late(self, phase: AnyPhase, now_s: float) -> list[JobRank]:
        """Ranks that have kept a pause waiting for too long."""
        spared = phase.spared if isinstance(phase, Pausing) else {}
        return [
            rank for rank in self.world.not_paused() if now_s >= max(self._due_s(phase, rank), spared.get(rank, 0.0))
        ]

    def _due_s(self, phase: AnyPhase, rank: JobRank) -> float:
        view = self.world.ranks[rank]
        if view.node_rank in self.world.nodes.dead_nodes:
            return self._asked_s(view.node_rank, view.since_s) + self.wait_s()
        return view.since_s + (self.newcomer_s() if view.joins else self.policy.deadlines.pause_s)

    def nodes_due_s(self, since_s: float) -> float:
        """Until when the nodes that the cluster was asked for are waited for."""
        return max(self._asked_s(place, since_s) for place in self.world.vacant) + self.wait_s()

    def _asked_s(self, place: NodeRank, since_s: float) -> float:
        return self.incident.asked_s.get(place, since_s) if self.incident is not None else since_s

    def wait_s(self) -> float:
        """How long a node is waited for before fewer have to do."""
        limit_s, sized_s = self.policy.deadlines.wait_node_s, self.policy.strategies.sized_wait_s
        if sized_s is not None and is_sized(self.world.nodes.least, self.policy.strategies):
            return min(limit_s, sized_s)
        return limit_s

    def newcomer_s(self) -> float:
        """How long a new process is given up to the resilient function: some times what the others have needed."""
        limit_s = self.policy.deadlines.replace_s
        if self.setup_s is None or not self.policy.deadlines.learn_set_up:
            return limit_s
        return min(limit_s, max(SET_UP_S, SET_UPS * self.setup_s))

    # ---- who has ended, and of what

    def cause(self, rank: JobRank) -> Cause:
        """Of what a rank's process has ended, or with what error it came out."""
        view = self.world.ranks[rank]
        if view.exited:
            return EARLY
        return of_report(view.status) if view.status is not None else UNKNOWN

    def ended(self) -> dict[JobRank, Cause]:
        """Ranks without a process. Those that exited with status 0 count only if no other has ended."""
        gone = [rank for rank, view in self.world.ranks.items() if view.gone]
        dead = [rank for rank in gone if not self.world.ranks[rank].exited]
        return {rank: self.cause(rank) for rank in dead or gone}

    def fatal(self, rank: JobRank) -> str:
        """Why the job ends with this process: it has died of a bug of the job's own code. "" if it has not."""
        status = self.world.ranks[rank].known
        if status is None or status.kind != FaultKind.FATAL.value:
            return ""
        return f"rank {rank}: {status.cause}; that is a bug of the job, which is not recovered from"

    def failed_to_start(self, rank: JobRank, now_s: float) -> bool:
        """The process ended by itself, soon after its start, before any step was committed."""
        young = now_s - self.world.ranks[rank].since_s < EARLY_S
        return young and self.step < 0 and self.cause(rank).kind is CauseKind.EXITED

    def ended_by_themselves(self) -> bool:
        """Nobody outside has ended any of the processes that are gone."""
        return all(self.cause(rank).by_itself for rank, view in self.world.ranks.items() if view.gone)

    # ---- who is heard

    def has_quorum(self, now_s: float) -> bool:
        """Whether enough nodes of the present world are heard to decide about the others."""
        return has_quorum(self.world.nodes, self.world.places, now_s, self.policy.membership)

    def settled(self) -> bool:
        """After RELEASE: whether nobody can still be between two resilient functions."""
        return all(self.world.ranks[rank].gone for rank in self.world.outside())
