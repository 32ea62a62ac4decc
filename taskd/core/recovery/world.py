"""What the manager knows of the job's ranks and nodes, and which process it wants for each rank.

Rules:

1. A report counts only if it is newer than the last one of the same agent, and of the wanted incarnation.
2. `RankView.at(generation)` is the only way to ask for a stage: a report of another generation says nothing, except
   that a process that is gone is gone in every generation.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from taskd.core.membership.places import Nodes
from taskd.core.recovery.warmth import WarmStarts, Warmth
from taskd.core.replica_sets import Replica, keys_of
from taskd.wire.kinds import JobRank, NodeRank
from taskd.wire.messages import Condition, NodeStatus, RankOrder, RankStatus, Stage

_GONE = (Stage.DEAD, Stage.EXITED)
COOPERATIVE = (
    Stage.TRAINING,
    Stage.PAUSED,
    Stage.JOINED,
    Stage.RESTORED,
    Stage.COMMITTED,
    Stage.FINISHED,
    Stage.DUMPED,
)
"""Stages in which a rank can be paused and joined to another world."""


def stage_in(status: RankStatus, generation: int) -> Stage | None:
    """What a report says of a process in `generation`: nothing if it is of another one, but for the process's end."""
    return status.stage if status.generation == generation or status.stage in _GONE else None


def newest_generation(status: NodeStatus) -> int:
    """The newest that a node's agent or a process of it knows. An agent that obeys a newer manager may know less."""
    return max(status.generation, *(rank.generation for rank in status.ranks), 0)


@dataclass(slots=True)
class RankView:
    """One rank: the process wanted, and what was last heard of it."""

    node_rank: NodeRank
    incarnation: int = 0
    joins: bool = False
    moved: bool = False
    """Of a newcomer: its node has been given the place for it, and nothing has failed since."""
    cold: bool = False
    """The wanted process was ordered when no warm one was to become a rank."""
    since_s: float = 0.0
    status: RankStatus | None = None
    replicas: Replica | None = None
    """What it holds, by what its newest process that was inside has reported; None if none was."""
    fell_in_set_up: bool = False
    """Of a process that has ended: it is not known to have reached the resilient function."""
    released_at_s: float | None = None
    """When it had finished, if it was let go and is not known to be inside a resilient function again."""
    _order: RankOrder | None = field(default=None, compare=False)

    def at(self, generation: int) -> Stage | None:
        """The stage that the wanted process has reached in `generation`."""
        status = self.status
        if status is None or status.incarnation != self.incarnation:
            return None
        return stage_in(status, generation)

    @property
    def gone(self) -> bool:
        """The wanted process has ended."""
        status = self.status
        return status is not None and status.stage in _GONE and status.incarnation == self.incarnation

    @property
    def exited(self) -> bool:
        """The wanted process has ended with status 0."""
        return self.at(-1) is Stage.EXITED

    @property
    def done(self) -> bool:
        """The wanted process has ended, or was let go behind its training."""
        return self.gone or self.released_at_s is not None

    @property
    def known(self) -> RankStatus | None:
        """What was last heard of the wanted process; None if nothing was."""
        return self.status if self.status is not None and self.status.incarnation == self.incarnation else None

    @property
    def starting(self) -> bool:
        """The wanted process is not known to have reached the resilient function."""
        known = self.known
        return known is None or known.stage is Stage.STARTING

    @property
    def cooperative(self) -> bool:
        """The wanted process can be paused and joined to another world."""
        status = self.status
        cooperates = status is not None and status.stage in COOPERATIVE and status.incarnation == self.incarnation
        return cooperates and self.released_at_s is None

    @property
    def empty(self) -> bool:
        """There is no process, or a newcomer that holds no state yet."""
        return self.gone or (self.joins and (self.known is None or self.known.condition is Condition.EMPTY))

    def note(self, status: RankStatus) -> None:
        """Take in what was heard of it."""
        self.fell_in_set_up = status.stage in _GONE and self.starting
        self.status = status
        if status.incarnation != self.incarnation or not (status.backs_up or status.stage in COOPERATIVE):
            return  # that it has copies it may have said right before its end: both are heard of at once
        known = self.replicas or Replica()  # a new process has no digests yet
        weights, row = status.weights or known.weights, status.row or known.row
        self.replicas = Replica(status.replicas, weights, status.backs_up, status.elsewhere, status.saved >= 0, row)
        if status.stage in COOPERATIVE and (status.stage is not Stage.FINISHED or status.at_s != self.released_at_s):
            self.released_at_s = None  # it is inside another resilient function

    def order(self, rank: JobRank) -> RankOrder:
        """The process wanted for this rank."""
        order = self._order
        if order is None or order.incarnation != self.incarnation or order.joins is not self.joins:
            order = self._order = RankOrder(rank=rank, incarnation=self.incarnation, joins=self.joins)
        return order


@dataclass(slots=True)
class World:
    """The ranks of the present world, and the nodes of the job. Ranks that are not in `ranks` are absent."""

    nodes: Nodes = field(default_factory=Nodes)
    generation: int = 0
    ranks: dict[JobRank, RankView] = field(default_factory=dict)
    warm_starts: WarmStarts = field(default_factory=WarmStarts)
    asking: set[JobRank] = field(default_factory=set)
    """Ranks that were heard to ask for a start of all processes."""
    _incarnations: dict[JobRank, int] = field(default_factory=dict)
    """The newest process that was wanted for a rank that is absent now."""
    _exceptions: dict[object, RankView] = field(default_factory=dict, compare=False)
    """By what was asked of all ranks one of which it did not hold, which is asked first the next time."""
    _members: tuple[JobRank, ...] | None = field(default=None, compare=False)
    _places: tuple[NodeRank, ...] | None = field(default=None, compare=False)

    def admit(self, status: NodeStatus, now_s: float) -> None:
        """Take over the ranks, processes and generation that an agent carries: a manager's view is made of this.

        Of a place that another manager has given to the agent, it can say nothing to this one but the generation.
        """
        self.generation = max(self.generation, newest_generation(status))
        if self.nodes.place_of(status.agent_id) != status.node_rank:
            return
        self._renew()
        for rank in status.ranks:
            view = self.ranks[rank.rank] = RankView(status.node_rank, rank.incarnation, since_s=now_s)
            view.note(rank)

    def adopt(self, status: RankStatus, now_s: float) -> None:
        """A process newer than the wanted one: a former manager has ordered it, for a world that was being built."""
        view = self.ranks[status.rank]
        view.incarnation, view.joins, view.moved, view.cold = status.incarnation, True, False, False
        view.since_s, view.released_at_s = now_s, None

    def expect(self, place: NodeRank, per_node: int, now_s: float) -> None:
        """Have the ranks of a place in the world of which nothing is known but that they belong there."""
        self._renew()
        newest = max((view.incarnation for view in self.ranks.values()), default=0)
        for rank in map(JobRank, range(place * per_node, (place + 1) * per_node)):
            incarnation = max(newest, self._incarnations.get(rank, 0)) + 1
            self.ranks[rank] = RankView(place, incarnation, joins=True, since_s=now_s)

    def remove(self, ranks: Collection[JobRank]) -> None:
        """Go on without these ranks."""
        self._renew()
        for rank in ranks:
            self._incarnations[rank] = self.ranks.pop(rank).incarnation

    def _renew(self) -> None:
        """The world has other ranks than before."""
        self._members = self._places = None
        self._exceptions.clear()

    @property
    def members(self) -> tuple[JobRank, ...]:
        """The ranks of the present world, in order."""
        if self._members is None:
            self._members = tuple(sorted(self.ranks))
        return self._members

    @property
    def places(self) -> tuple[NodeRank, ...]:
        """The places of the present world."""
        if self._places is None:
            self._places = tuple(sorted({view.node_rank for view in self.ranks.values()}))
        return self._places

    @property
    def vacant(self) -> tuple[NodeRank, ...]:
        """Places of the world whose holder is gone."""
        return tuple(place for place in self.places if place in self.nodes.dead_nodes)

    def replace(self, rank: JobRank, now_s: float, *, joins: bool, moved: bool = False) -> None:
        """Want a new process for a rank."""
        view = self.ranks[rank]
        view.incarnation += 1
        view.joins, view.moved = joins, moved
        view.cold = self.warm_starts.warmth is Warmth.AVOIDED
        view.since_s = now_s
        view.released_at_s = None

    def release(self) -> None:
        """Every rank that is still there is let go."""
        for view in self.ranks.values():
            if view.known is not None and not view.exited:
                view.released_at_s = view.known.at_s

    def outside(self) -> list[JobRank]:
        """Ranks that were let go and are not known to be inside again. A process that has ended remains one of them."""
        return [rank for rank, view in self.ranks.items() if view.released_at_s is not None or view.exited]

    def all_cooperate(self) -> bool:
        """Every rank can be paused."""
        return self._all("cooperative", lambda view: view.cooperative)

    def all_at(self, stages: Collection[Stage]) -> bool:
        """Every rank has reached one of these stages in this generation."""
        return self._all(stages, lambda view: view.at(self.generation) in stages)

    def all_paused(self, *, newcomers: bool) -> bool:
        """Every newcomer, or every other rank, has paused."""
        key = ("paused", newcomers)
        return self._all(key, lambda view: view.joins is not newcomers or view.at(self.generation) is Stage.PAUSED)

    def _all(self, key: object, holds: Callable[[RankView], bool]) -> bool:
        """Whether something holds of every rank. Reports come one by one: the last exception mostly is one still.

        Searched from the end, since agents are mostly heard in the order of their ranks.
        """
        exception = self._exceptions.get(key)
        if exception is not None and not holds(exception):
            return False
        exception = next((view for view in reversed(self.ranks.values()) if not holds(view)), None)
        if exception is not None:
            self._exceptions[key] = exception
        return exception is None

    def not_paused(self) -> list[JobRank]:
        """Ranks that the pause is waiting for."""
        return [rank for rank, view in self.ranks.items() if view.at(self.generation) is not Stage.PAUSED]

    def at_stage(self, stage: Stage) -> list[JobRank]:
        """Ranks that are at this stage in this generation."""
        return [rank for rank, view in self.ranks.items() if view.at(self.generation) is stage]

    def common_step(self) -> int:
        """The newest step that every rank is known to have committed; -1 if one has reported none."""
        return min(view.known.step if view.known is not None else -1 for view in self.ranks.values())

    def exited(self) -> list[JobRank]:
        """Ranks whose process ended with status 0."""
        return [rank for rank, view in self.ranks.items() if view.exited]

    def on_node(self, node_rank: NodeRank) -> list[JobRank]:
        """Ranks that live on a node."""
        return [rank for rank, view in self.ranks.items() if view.node_rank == node_rank]


def replica_sets(world: World) -> dict[JobRank, str | None]:
    """The key of each rank's replica set; None if nothing is known of it."""
    return keys_of({rank: view.replicas for rank, view in world.ranks.items()})
