"""The state of one job: its world, its fault, what was tried; and the orders that go out.

Rules:

1. Every change of what is wanted is published, with a newer sequence number.
2. Nothing is decided here.
"""

from dataclasses import dataclass, field
from typing import Final

from taskd.core.budget import Budget
from taskd.core.phases import Action, Phase, Publish
from taskd.core.policy import Policy, Strategy
from taskd.core.record import FaultRecord, tell
from taskd.core.rendezvous import NOWHERE, Rendezvous
from taskd.core.strategy import is_sized
from taskd.core.world import World
from taskd.errors import TransitionError
from taskd.wire.messages import Directive, Ledger, NodeStatus, Order, Place, WorldPlan
from taskd.wire.text import line

SET_UP_S: Final = 60.0
SET_UPS: Final = 10
"""A newcomer that needs longer, and so many times as long as processes that started together, waits for somebody."""


@dataclass(slots=True)
class JobState:
    """What the manager knows of one job's course, and what it orders."""

    policy: Policy
    phase: Phase = Phase.FORMING
    world: World = field(default_factory=World)
    budget: Budget | None = None
    record: FaultRecord | None = None
    directive: Directive | None = None
    sequence: int = 0
    """Number of the newest directive. The first of a new manager must exceed those of the job's former ones."""
    step: int = -1
    """Newest committed step that any rank has reported since the job, or all of its processes, last started."""
    term: int = 0
    """Number of this manager: agents obey the highest that they know."""
    faults: int = 0
    """Faults that were given a number."""
    _probe: int = 0
    """Number of the newest question to the agents."""
    _asked: dict[int, float] = field(default_factory=dict)
    """Places for which the cluster was asked for a node, and when."""
    _tried: dict[tuple[Strategy, bool], str] = field(default_factory=dict)
    _failures: int = 0
    _since_s: float = 0.0
    _confirm_until_s: float | None = None
    _now_s: float = 0.0
    _review_due: bool = False
    _undecided: bool = False
    """The fault is met by waiting, until enough nodes are heard to choose a strategy."""
    _rendezvous: Rendezvous = NOWHERE
    """Where the processes of a world that starts anew meet: the same place for all of them, whenever they start."""
    _drained: int | None = None
    """A place that is to be given to another node as soon as all have paused."""
    _patient: bool = False
    """The ranks pause at the end of their step."""
    _first_out_s: float | None = None
    _unknown: bool = False
    """All have paused, but too few nodes of the last world are known to know of the next one."""
    _echoes: set[str] = field(default_factory=set)
    """Agents that are known to know."""
    _setup_s: float | None = None
    """The longest that a process which was not alone has needed up to the resilient function."""
    _spared: dict[int, float] = field(default_factory=dict)
    """Ranks that have not paused in time, and until when they are waited for before it is asked again what they do."""
    _pause_asked_s: float | None = None
    """When the late ones were asked."""
    _free: bool = False
    """The next fault spends no restart: perhaps it is none."""
    _out: list[Action] = field(default_factory=list)

    def _echoed(self, status: NodeStatus) -> bool:
        """Whether, with this report, enough nodes may know of the next world. The whole question takes longer."""
        few = 2 * len(self._echoes) < len(self.world.agreed)  # else no more names are needed
        if few and status.ledger.term == self.term and status.generation >= self.world.generation:
            self._echoes.add(status.agent_id)
        return 2 * len(self._echoes) >= len(self.world.agreed)

    def late(self) -> list[int]:
        """Ranks that have kept a pause waiting for too long."""
        return [rank for rank in self.world.not_paused() if self._now_s >= self._due_s(rank)]

    def waited_s(self) -> float:
        """Until when the nodes that the cluster was asked for are waited for."""
        return max(self._asked.get(place, self._since_s) for place in self.world.vacant) + self.wait_s()

    def wait_s(self) -> float:
        """How long a node is waited for before fewer have to do."""
        limit_s, sized_s = self.policy.wait_node_s, self.policy.sized_wait_s
        if sized_s is not None and is_sized(self.world.least, self.policy):
            return min(limit_s, sized_s)
        return limit_s

    def _due_s(self, rank: int) -> float:
        view, limits = self.world.ranks[rank], self.policy.deadlines
        if view.node_rank in self.world.dead_nodes:
            return self._asked.get(view.node_rank, view.since_s) + self.wait_s()
        if view.joins:
            return view.since_s + self.newcomer_s()
        return max(view.since_s + limits.pause_s, self._spared.get(rank, 0.0))

    def newcomer_s(self) -> float:
        """How long a new process is given up to the resilient function: some times what the others have needed."""
        limit_s = self.policy.deadlines.replace_s
        return limit_s if self._setup_s is None else min(limit_s, max(SET_UP_S, SET_UPS * self._setup_s))

    def _cause(self, rank: int) -> str:
        view = self.world.ranks[rank]
        if view.exited:
            return "it exited with status 0 before the others"
        return view.status.cause if view.status is not None else ""

    def _ended(self) -> dict[int, str]:
        """Ranks without a process. Those that exited with status 0 count only if no other has ended."""
        gone = [rank for rank, view in self.world.ranks.items() if view.gone]
        dead = [rank for rank in gone if not self.world.ranks[rank].exited]
        return {rank: self._cause(rank) for rank in dead or gone}

    def _need_record(self) -> FaultRecord:
        if self.record is None:
            raise TransitionError(f"phase {self.phase.name} without a fault")
        return self.record

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self._since_s = self._now_s
        self._confirm_until_s = None
        self._unknown = self._patient = False
        self._drained = self._pause_asked_s = None
        self._spared.clear()
        self._first_out_s = None
        self._review_due = phase is Phase.RUNNING

    def _order(
        self,
        order: Order,
        plan: WorldPlan | None = None,
        reason: str = "",
        exit_code: int = 0,
        *,
        at_commit: bool = False,
    ) -> None:
        self._patient = False
        if self.record is not None and not reason:
            reason = tell(self.record.causes)
        self.sequence += 1
        anew = self.phase is Phase.RESTARTING
        self.directive = Directive(
            job_id=self.policy.job_id,
            sequence=self.sequence,
            generation=self.world.generation,
            order=order,
            ranks=self.world.orders(),
            plan=plan,
            reason=line(reason),
            exit_code=exit_code,
            node_count=self.policy.node_count,
            at_commit=at_commit,
            probe=self._probe,
            store_host=self._rendezvous.host if anew else "",
            store_port=self._rendezvous.port if anew else 0,
            store_key=self._rendezvous.key if anew else "",
            places=self.world.table(),
            ledger=Ledger(
                term=self.term,
                places=self.world.places,
                agreed=tuple(Place(node_rank=place, agent_id=a) for place, a in sorted(self.world.agreed.items())),
                spent=self.budget.spent if self.budget is not None else 0,
                excluded=tuple(sorted(self.world.excluded)),
            ),
        )
        self._out.append(Publish(self.directive))
