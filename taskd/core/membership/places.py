"""Holders of the job's places, candidates for a place, and the holders that have fallen silent.

Rules:

1. A place is held by one agent at a time. An agent that reports a place without holding it is a candidate until it
   obeys.
2. Places are claimed only while the job forms. Of two claims, the one from the newer world counts. Later, `assign`
   gives places.
3. A dead holder keeps its place until the place is given away, so a node that comes back in time goes on.
"""

from dataclasses import dataclass, field
from enum import Enum

from taskd.core.membership.health import Health, health
from taskd.core.policy import Membership
from taskd.wire.kinds import NodeRank
from taskd.wire.messages import Ledger, NodeStatus, Place, Stage

_FORMER = 256
"""Number of former holders that are remembered, in addition to one for each place."""


class Reporter(Enum):
    """Role of the agent that has reported."""

    STALE = "stale"  # the report is not newer than the last one of that agent
    HOLDER = "holder"
    CANDIDATE = "candidate"


@dataclass(slots=True)
class NodeView:
    """One node: its agent's last report, the time of that report, and the time of the last question to its kernel."""

    status: NodeStatus
    heard_s: float
    asked_s: float = 0.0
    new_since_s: float | None = None
    """Time of its first report, if no manager had ever led it before; else None."""

    def then(self, status: NodeStatus, now_s: float) -> "NodeView":
        """Return the same node with a newer report."""
        return NodeView(status, now_s, self.asked_s, self.new_since_s)

    @staticmethod
    def first(status: NodeStatus, now_s: float) -> "NodeView":
        """Return a node that was not known."""
        return NodeView(status, now_s, new_since_s=None if status.ledger.term else now_s)


@dataclass(slots=True)
class Nodes:
    """Nodes of one job."""

    holders: dict[NodeRank, str] = field(default_factory=dict)
    by_place: dict[NodeRank, NodeView] = field(default_factory=dict)
    """Last report of each place's holder."""
    candidates: dict[str, NodeView] = field(default_factory=dict)
    excluded: set[str] = field(default_factory=set)
    """Agents that get no place any more."""
    dead_nodes: set[NodeRank] = field(default_factory=set)
    """Places of the world whose holder is gone."""
    vacated: set[NodeRank] = field(default_factory=set)
    """Places in `dead_nodes` that were taken from their holder and not given to another agent yet."""
    agreed: dict[NodeRank, str] = field(default_factory=dict)
    """Holders of the places in the last world that was formed."""
    _place_of: dict[str, NodeRank] = field(default_factory=dict)
    wanted: set[NodeRank] = field(default_factory=set)
    """Places for which this manager has asked the cluster for a node."""

    def hear(self, status: NodeStatus, now_s: float, *, claims: range = range(0)) -> Reporter:
        """Record an agent's report. `claims`: the places that may be claimed now."""
        place = self.place_of(status.agent_id)
        known = self.candidates.get(status.agent_id) if place is None else self.by_place.get(place)
        if known is not None and known.status.agent_id != status.agent_id:
            known = None
        if known is not None and status.sequence <= known.status.sequence:
            return Reporter.STALE
        if place is None and status.node_rank in claims and self._may_claim(status):
            place = status.node_rank
            self._hold(place, status.agent_id)
            self.candidates.pop(status.agent_id, None)
        view = known.then(status, now_s) if known is not None else NodeView.first(status, now_s)
        if place is None:
            self.candidates[status.agent_id] = view
            return Reporter.CANDIDATE
        self.by_place[place] = view
        if status.leaving:  # a leaving node cannot go on under another manager
            self.agreed = {place: holder for place, holder in self.agreed.items() if holder != status.agent_id}
        else:
            self.dead_nodes.discard(place)
        return Reporter.HOLDER

    def _may_claim(self, status: NodeStatus) -> bool:
        """Return whether an agent may claim the place that it reports.

        The place is free, or its holder knows only an older world: the place was given to this agent since.
        """
        place = status.node_rank
        if place in self.holders and age(status) > age(self.by_place[place].status):
            self.demote(place)
        return place not in self.holders

    def place_of(self, agent_id: str) -> NodeRank | None:
        """Return the place that an agent holds; None if it holds none."""
        place = self._place_of.get(agent_id)
        return place if place is not None and self.holders.get(place) == agent_id else None

    def known_places(self, agent_id: str) -> set[NodeRank]:
        """Return the places whose ranks an agent can know: those it holds now or held in the last world."""
        place = self.place_of(agent_id)
        former = {one for one, holder in self.agreed.items() if holder == agent_id}
        return former if place is None else former | {place}

    def _hold(self, place: NodeRank, agent_id: str) -> None:
        self.holders[place] = agent_id
        self._place_of.pop(agent_id, None)
        self._place_of[agent_id] = place
        if len(self._place_of) > 2 * len(self.holders) + _FORMER:
            former = [name for name in self._place_of if self.place_of(name) is None]
            for name in former[: -(len(self.holders) + _FORMER)]:
                del self._place_of[name]

    def was_held(self, place: NodeRank, agent_id: str) -> bool:
        """Return whether the agent held the place in the last world that was formed, or no agent is known to have."""
        return self.agreed.get(place, agent_id) == agent_id

    def candidate_for(self, place: NodeRank) -> str | None:
        """Return the agent that should get a place; None without one.

        An agent whose launcher meant it for that place comes first, then any that is free.
        """
        usable = sorted((status.wants != place, status.agent_id) for status in self.usable() if not status.leaving)
        return usable[0][1] if usable else None

    def usable(self) -> list[NodeStatus]:
        """Return the candidates that may get a place: not excluded, and checked if a check is required."""
        free = [view.status for name, view in self.candidates.items() if name not in self.excluded]
        return [status for status in free if may_train(status)]

    def assign(self, place: NodeRank, agent_id: str) -> None:
        """Give a place to a candidate."""
        self.vacate(place)
        self.vacated.discard(place)
        self._hold(place, agent_id)
        self.by_place[place] = self.candidates.pop(agent_id)
        self.dead_nodes.discard(place)

    def vacate(self, place: NodeRank) -> None:
        """Take a place from its holder, which is a candidate again as soon as it reports."""
        self.holders.pop(place, None)
        self.by_place.pop(place, None)

    def demote(self, place: NodeRank) -> None:
        """Make the holder of a place a candidate, because it had no right to the place."""
        view = self.by_place[place]
        self.vacate(place)
        self.candidates[view.status.agent_id] = view

    def named(self, node: str) -> NodeRank | None:
        """Return the place that a person names, by its number or by the name of its node; None if there is none."""
        if node.isascii() and node.isdecimal():
            return NodeRank(int(node)) if int(node) in self.holders else None
        return next((place for place, view in self.by_place.items() if view.status.host == node), None)

    @property
    def least(self) -> int:
        """MIN of torchrun's `--nnodes=MIN:MAX`; 0 if it names one number."""
        return max((view.status.min_nodes for view in self.by_place.values()), default=0)

    def views(self) -> list[NodeView]:
        """Return all nodes: those that hold a place, and those that wait for one."""
        return [*self.by_place.values(), *self.candidates.values()]

    # ---- silence

    def silent(self, now_s: float, policy: Membership) -> list[NodeRank]:
        """Return the places whose holder is newly dead by its silence. Silent candidates are forgotten."""
        for name, view in list(self.candidates.items()):
            if health(view.heard_s, now_s, policy) is Health.DEAD:
                del self.candidates[name]
        return [
            place
            for place, view in self.by_place.items()
            if place not in self.dead_nodes
            and not has_stopped(view.status)
            and health(view.heard_s, now_s, policy) is Health.DEAD
        ]

    def to_ask(self, now_s: float, policy: Membership) -> list[NodeStatus]:
        """Return the silent agents whose kernel must be asked, and was not asked lately."""
        found = []
        for place, view in self.by_place.items():
            suspect = health(view.heard_s, now_s, policy) is Health.SUSPECT and place not in self.dead_nodes
            if suspect and not has_stopped(view.status) and now_s - view.asked_s >= policy.suspect_s:
                view.asked_s = now_s
                found.append(view.status)
        return found

    def gone(self, agent_id: str, now_s: float, policy: Membership) -> NodeRank | None:
        """Return the place that is lost because no process listens at its agent's port.

        Returns None if the agent holds no place or is not silent.
        """
        place = self.place_of(agent_id)
        if place is None:
            self.candidates.pop(agent_id, None)
            return None
        silent = health(self.by_place[place].heard_s, now_s, policy) is not Health.ALIVE
        return place if silent and place not in self.dead_nodes else None

    def newest_ledger(self) -> Ledger:
        """Return the ledger of the holder that knows the newest world."""
        return max((node.status for node in self.by_place.values()), key=age).ledger

    def trust(self, ledger: Ledger) -> None:
        """Adopt the facts that an earlier manager recorded of the last world that was formed."""
        self.agreed = {place.node_rank: place.agent_id for place in ledger.agreed}

    def table(self) -> tuple[Place, ...]:
        """Return all places with their holders."""
        return tuple(Place(node_rank=place, agent_id=holder) for place, holder in sorted(self.holders.items()))


def has_stopped(status: NodeStatus) -> bool:
    """Return whether a node that is stopping has lost a rank, or has none left.

    Before that, its ranks may agree with all others to stop, and save. No rank is paused meanwhile.
    """
    stages = {rank.stage for rank in status.ranks}
    return status.leaving and (Stage.DEAD in stages or stages <= {Stage.EXITED})


def may_train(status: NodeStatus) -> bool:
    """Return whether a node requires no check, or has passed it."""
    return status.check is None or not status.check.wants or status.check.cleared


def age(status: NodeStatus) -> tuple[int, int, int]:
    """Return how new the world is that an agent knows, as a tuple for comparison."""
    newest = max((rank.incarnation for rank in status.ranks), default=-1)
    return status.ledger.term, status.generation, newest
