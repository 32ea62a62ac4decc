"""Who holds which place of the job, who waits for one, and which holders are heard.

Rules:

1. A place is held by one agent at a time. An agent that reports anything else is a candidate until it obeys.
2. Places are claimed only while the job forms; of two claims that of the newer world counts. Later they are given: by
   `assign`.
3. A holder that is dead keeps its place until that is given away, so a node that comes back in time goes on.
"""

from dataclasses import dataclass, field
from enum import Enum

from taskd.core.membership.health import Health, health
from taskd.core.policy import Membership
from taskd.wire.kinds import NodeRank
from taskd.wire.messages import Ledger, NodeStatus, Place, Stage

_FORMER = 256
"""So many agents, and one for each place, are remembered that held a place before."""


class Reporter(Enum):
    """Whose report it is."""

    STALE = "stale"  # older than what is known of that agent
    HOLDER = "holder"
    CANDIDATE = "candidate"


@dataclass(slots=True)
class NodeView:
    """One node: its agent's last report, when it was heard, and when its kernel was last asked."""

    status: NodeStatus
    heard_s: float
    asked_s: float = 0.0
    new_since_s: float | None = None
    """When it was first heard, if it had never been led by a manager then."""

    def then(self, status: NodeStatus, now_s: float) -> "NodeView":
        """The same node, heard again."""
        return NodeView(status, now_s, self.asked_s, self.new_since_s)

    @staticmethod
    def first(status: NodeStatus, now_s: float) -> "NodeView":
        """A node that was not known."""
        return NodeView(status, now_s, new_since_s=None if status.ledger.term else now_s)


@dataclass(slots=True)
class Nodes:
    """The nodes of one job."""

    holders: dict[NodeRank, str] = field(default_factory=dict)
    by_place: dict[NodeRank, NodeView] = field(default_factory=dict)
    """By place, what its holder last reported."""
    candidates: dict[str, NodeView] = field(default_factory=dict)
    excluded: set[str] = field(default_factory=set)
    """Agents that get no place any more."""
    dead_nodes: set[NodeRank] = field(default_factory=set)
    """Places of the world whose holder is gone."""
    vacated: set[NodeRank] = field(default_factory=set)
    """Those of them that were taken from their holder and not given to another yet."""
    agreed: dict[NodeRank, str] = field(default_factory=dict)
    """Who held the places of the last world that came about."""
    _place_of: dict[str, NodeRank] = field(default_factory=dict)
    wanted: set[NodeRank] = field(default_factory=set)
    """Places for which this manager has asked the cluster for a node."""

    def hear(self, status: NodeStatus, now_s: float, *, claims: range = range(0)) -> Reporter:
        """Note that an agent reported. `claims` are the places that may be claimed now."""
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
        if status.leaving:  # it cannot go on elsewhere
            self.agreed = {place: holder for place, holder in self.agreed.items() if holder != status.agent_id}
        else:
            self.dead_nodes.discard(place)
        return Reporter.HOLDER

    def _may_claim(self, status: NodeStatus) -> bool:
        """The place is free, or its holder only knows an older world: it was given to this agent since."""
        place = status.node_rank
        if place in self.holders and age(status) > age(self.by_place[place].status):
            self.demote(place)
        return place not in self.holders

    def place_of(self, agent_id: str) -> NodeRank | None:
        """The place that an agent holds."""
        place = self._place_of.get(agent_id)
        return place if place is not None and self.holders.get(place) == agent_id else None

    def known_places(self, agent_id: str) -> set[NodeRank]:
        """The places of whose ranks an agent can know: the one that it holds, or has held in the last world."""
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
        """Whether the agent held the place in the last world that came about, or nobody is known to have."""
        return self.agreed.get(place, agent_id) == agent_id

    def candidate_for(self, place: NodeRank) -> str | None:
        """The agent that should get a place: the one whose launcher meant it for that, else any that is free."""
        usable = sorted((status.wants != place, status.agent_id) for status in self.usable() if not status.leaving)
        return usable[0][1] if usable else None

    def usable(self) -> list[NodeStatus]:
        """The candidates that may get a place: not excluded, and checked if they are to be."""
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
        """Take a place from its holder, who is a candidate again as soon as it is heard."""
        self.holders.pop(place, None)
        self.by_place.pop(place, None)

    def demote(self, place: NodeRank) -> None:
        """The holder of a place had no right to it."""
        view = self.by_place[place]
        self.vacate(place)
        self.candidates[view.status.agent_id] = view

    def named(self, node: str) -> NodeRank | None:
        """The place that a person means: its number, or the name of its node."""
        if node.isascii() and node.isdecimal():
            return NodeRank(int(node)) if int(node) in self.holders else None
        return next((place for place, view in self.by_place.items() if view.status.host == node), None)

    @property
    def least(self) -> int:
        """MIN of torchrun's `--nnodes=MIN:MAX`; 0 if it names one number."""
        return max((view.status.min_nodes for view in self.by_place.values()), default=0)

    def views(self) -> list[NodeView]:
        """All nodes: those that hold a place, and those that wait for one."""
        return [*self.by_place.values(), *self.candidates.values()]

    # ---- silence

    def silent(self, now_s: float, policy: Membership) -> list[NodeRank]:
        """Places whose holder is dead by its silence and was not known to be. Silent candidates are forgotten."""
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
        """Agents that have been silent for so long that their kernel is to be asked, and was not lately."""
        found = []
        for place, view in self.by_place.items():
            suspect = health(view.heard_s, now_s, policy) is Health.SUSPECT and place not in self.dead_nodes
            if suspect and not has_stopped(view.status) and now_s - view.asked_s >= policy.suspect_s:
                view.asked_s = now_s
                found.append(view.status)
        return found

    def gone(self, agent_id: str, now_s: float, policy: Membership) -> NodeRank | None:
        """Nobody listens at an agent's port: the place that is lost with it, if it is still silent."""
        place = self.place_of(agent_id)
        if place is None:
            self.candidates.pop(agent_id, None)
            return None
        silent = health(self.by_place[place].heard_s, now_s, policy) is not Health.ALIVE
        return place if silent and place not in self.dead_nodes else None

    def newest_ledger(self) -> Ledger:
        """What the holder that knows the newest world carries of it."""
        return max((node.status for node in self.by_place.values()), key=age).ledger

    def trust(self, ledger: Ledger) -> None:
        """Take over what an earlier manager knew of the last world that came about."""
        self.agreed = {place.node_rank: place.agent_id for place in ledger.agreed}

    def table(self) -> tuple[Place, ...]:
        """Who holds what."""
        return tuple(Place(node_rank=place, agent_id=holder) for place, holder in sorted(self.holders.items()))


def has_stopped(status: NodeStatus) -> bool:
    """Whether a node that is stopping has lost a rank, or has none left.

    Before that, its ranks may agree with all others to stop, and save: no rank is paused meanwhile.
    """
    stages = {rank.stage for rank in status.ranks}
    return status.leaving and (Stage.DEAD in stages or stages <= {Stage.EXITED})


def may_train(status: NodeStatus) -> bool:
    """Whether a node wants no check, or has passed it."""
    return status.check is None or not status.check.wants or status.check.cleared


def age(status: NodeStatus) -> tuple[int, int, int]:
    """How new the world is that an agent knows, for comparison."""
    newest = max((rank.incarnation for rank in status.ranks), default=-1)
    return status.ledger.term, status.generation, newest
