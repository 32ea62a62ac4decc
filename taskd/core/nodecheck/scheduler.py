"""The manager's schedule of node checks: which node is checked when, and with whom, and which may train then.

Rules:

1. A node that asks for a check gets no place before it is cleared (`Places.usable`). The node itself carries its
   clearance, and a new manager accepts it.
2. One check runs at a time. While the job forms, it includes all nodes. Later it includes newcomers, with nodes known
   to be good as their partners: spares first, then those that train.
3. Orders are states: each agent is sent the one that holds for it, until its report shows that it is done.
4. A node that is found unfit is ordered to leave until it has left. Its replacement is checked in turn.
5. If nodes fail with one another and it is not clear which is at fault, one leaves, so that another can be tried. It is
   the one that has been in doubt most often, and of equals the last.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from taskd.core.membership.places import Nodes, may_train
from taskd.core.nodecheck.check import NodeCheck
from taskd.core.nodecheck.check_run import GRACE_S, Action, Checked, CheckRun, RoundOver, Wanted, limits
from taskd.core.nodecheck.diagnosis import CheckDiagnosis, Leave, NodeHealth, choose_out
from taskd.core.nodecheck.evidence import CheckPolicy
from taskd.core.nodecheck.own import Baseline
from taskd.core.policy import Policy
from taskd.wire.checks import CheckOrder, Cleared, Dismissed
from taskd.wire.messages import NodeStatus

__all__ = ["GRACE_S", "Action", "Checked", "CheckScheduler", "Order", "RoundOver", "Wanted"]

_GONE = 256
"""Findings are kept for so many agents that have gone, and for four more for each place."""
Order = CheckOrder | Cleared | Dismissed
_NOT_TOLD_APART = (
    "{names} fail with one another, and it is not clear which is at fault: {node} leaves, so that another node can be "
    "tried in its place."
)


@dataclass(slots=True)
class _Since:
    """Start of the time in which nodes wait for a check, and of the time in which some of them are not ready."""

    waiting_s: float | None = None
    unready_s: float | None = None


@dataclass(slots=True)
class CheckScheduler:
    """All checks of one job. `number` of a manager that takes over must exceed those of its predecessors."""

    policy: Policy
    number: int
    _running: CheckRun | None = None
    _cleared: dict[str, str] = field(default_factory=dict)
    """By agent: the finding on a node that may train nevertheless."""
    _dismissed: dict[str, str] = field(default_factory=dict)
    """By agent: the reason why its node must leave."""
    _doubts: Counter[str] = field(default_factory=Counter)
    _baseline: Baseline | None = None
    _since: _Since = field(default_factory=_Since)
    _seen: frozenset[str] = frozenset()
    _asked_for: bool = False
    """True if a node may be waiting for a check."""
    _wanted: bool = False
    """True if a check of all nodes has been requested."""
    _out: list[Action] = field(default_factory=list)

    @property
    def due(self) -> bool:
        """True if `tick` may have work. Mostly it has none, and the scan of all nodes is saved."""
        return self._running is not None or self._asked_for or self._wanted

    def hear(self, status: NodeStatus) -> None:
        """Receive an agent's report. The agent may ask for a check."""
        self._asked_for = self._asked_for or not may_train(status)

    def order_for(self, status: NodeStatus) -> Order | None:
        """Return the order that holds for a node now; None if there is none, or if it has been carried out."""
        agent = status.agent_id
        if agent in self._dismissed:
            return Dismissed(reason=self._dismissed[agent])
        if agent in self._cleared and not may_train(status):
            return Cleared(note=self._cleared[agent])
        return None if self._running is None else self._running.order_for(agent)

    def inspect(self) -> None:
        """Check all nodes as soon as no other check is under way. They go on with their work, whatever the result."""
        self._wanted = True

    def tick(self, world: Nodes, *, forming: bool, now_s: float) -> list[Action]:
        """Receive the nodes' reports until now, and go on."""
        nodes = _nodes(world)
        if self._running is None:
            self._begin(world, nodes, forming=forming, now_s=now_s)
        else:
            self._go_on(self._running, nodes, now_s)
        out, self._out = self._out, []
        return out

    def _begin(self, world: Nodes, nodes: Mapping[str, NodeStatus], *, forming: bool, now_s: float) -> None:
        waiting = [
            status
            for agent, status in nodes.items()
            if not (may_train(status) or status.leaving or agent in self._dismissed or agent in self._cleared)
        ]
        if not waiting:
            self._asked_for = False
            self._since.waiting_s = None
            if self._wanted and not forming:
                self._inspect(nodes, now_s)
            return
        if forming and not self._all_here(nodes, frozenset(status.agent_id for status in waiting), now_s):
            return
        if not self._all_ready(waiting, now_s):
            return
        self._since.waiting_s = None
        waiting.sort(key=lambda status: (status.wants, status.host, status.agent_id))
        asking = {status.agent_id for status in waiting}
        partners = [nodes[agent] for agent in self._known_good(world, nodes) if agent not in asking]
        names = _names([*partners, *waiting])
        check = NodeCheck(
            (names[status.agent_id] for status in waiting),
            self._limits,
            (names[status.agent_id] for status in partners),
            self._baseline,
        )
        strict = any(status.check is not None and status.check.strict for status in waiting)
        self._start(CheckRun(self.policy, check, names, strict, now_s, 0), nodes, now_s)

    def _inspect(self, nodes: Mapping[str, NodeStatus], now_s: float) -> None:
        self._wanted = False
        here = [status for agent, status in nodes.items() if not status.leaving and agent not in self._dismissed]
        here.sort(key=lambda status: (status.node_rank < 0, status.node_rank, status.host, status.agent_id))
        names = _names(here)
        if names:
            check = NodeCheck((names[status.agent_id] for status in here), self._limits)
            self._start(CheckRun(self.policy, check, names, False, now_s, 0, inspection=True), nodes, now_s)

    def _start(self, running: CheckRun, nodes: Mapping[str, NodeStatus], now_s: float) -> None:
        self.number += 1
        running.number, self._running = self.number, running
        running.start_round(nodes, now_s)

    @property
    def _limits(self) -> CheckPolicy:
        return limits(self.policy.node_check)

    def _all_here(self, nodes: Mapping[str, NodeStatus], waiting: frozenset[str], now_s: float) -> bool:
        """Return whether a job that forms has its nodes, or those present have waited long enough for the others."""
        if waiting - self._seen or self._since.waiting_s is None:
            self._since.waiting_s = now_s
        self._seen = waiting
        present = [status for agent, status in nodes.items() if agent not in self._dismissed and not status.leaving]
        if len(present) >= self.policy.node_count:
            return True
        least = max(status.min_nodes for status in present)
        policy = self.policy.node_check
        limit_s = policy.last_call_s if 0 < least <= len(present) else policy.gather_s
        return now_s - self._since.waiting_s >= limit_s

    def _all_ready(self, waiting: Iterable[NodeStatus], now_s: float) -> bool:
        """Return whether all nodes can begin at once, or have had enough time to get ready.

        The time that a node needs to start its processes is no part of a round.
        """
        if all(status.check is not None and status.check.ready for status in waiting):
            self._since.unready_s = None
            return True
        if self._since.unready_s is None:
            self._since.unready_s = now_s
        if now_s - self._since.unready_s < self.policy.node_check.timeout_s:
            return False
        self._since.unready_s = None
        return True

    def _known_good(self, world: Nodes, nodes: Mapping[str, NodeStatus]) -> list[str]:
        """Return the nodes that wait for a place and were cleared, then the nodes of the world."""
        cleared = sorted(
            agent
            for agent, status in nodes.items()
            if (agent in self._cleared or (status.check is not None and status.check.cleared))
            and world.place_of(agent) is None
        )
        holders = [agent for place, agent in sorted(world.holders.items()) if place not in world.dead_nodes]
        here = (agent for agent in (*cleared, *holders) if agent in nodes and not nodes[agent].leaving)
        return [agent for agent in here if agent not in self._dismissed]

    def _go_on(self, running: CheckRun, nodes: Mapping[str, NodeStatus], now_s: float) -> None:
        running.listen(nodes, now_s)
        if not running.all_reported:
            return
        self._out.append(running.end_round(nodes, now_s))
        if running.check.plan() is not None:
            self._start(running, nodes, now_s)
            return
        self._running = None
        self._conclude(running, nodes, now_s)

    def _conclude(self, running: CheckRun, nodes: Mapping[str, NodeStatus], now_s: float) -> None:
        diagnosis, agents = running.check.diagnosis(), {name: agent for agent, name in running.names.items()}
        lasted_s = now_s - running.began_s
        if running.inspection:
            self._out.append(Checked(diagnosis, running.rounds, lasted_s, (), running.own, inspection=True))
            return
        self._baseline = running.check.baseline()
        leaves = [*choose_out(diagnosis, exclude_stragglers=running.strict), *self._doubtful(diagnosis, agents)]
        self._out.append(Checked(diagnosis, running.rounds, lasted_s, tuple(leaves), running.own))
        out = {leave.node: leave for leave in leaves}
        for name, found in diagnosis.nodes.items():
            agent = agents[name]
            if name in out:
                words, reason = out[name].words, out[name].reason
                self._dismissed[agent] = words if reason in words else f"{words} {reason}"
                if agent in nodes:
                    place = max(nodes[agent].wants, nodes[agent].node_rank)
                    self._out.append(Wanted(place, self._dismissed[agent]))
            elif found.health is not NodeHealth.UNDECIDED:
                self._cleared[agent] = found.text
        for known in (self._cleared, self._dismissed, self._doubts):
            self._forget(known, nodes)

    def _forget(self, known: dict[str, str] | Counter[str], nodes: Mapping[str, NodeStatus]) -> None:
        """Forget agents that have gone, the earliest first: each torchrun is another agent."""
        most = 4 * self.policy.node_count + _GONE
        gone = [agent for agent in known if agent not in nodes] if len(known) > most else []
        for agent in gone[: len(known) - most]:
            del known[agent]

    def _doubtful(self, diagnosis: CheckDiagnosis, agents: Mapping[str, str]) -> list[Leave]:
        """Choose one of several undecided nodes to leave (rule 5)."""
        undecided = diagnosis.having(NodeHealth.UNDECIDED)
        self._doubts.update(agents[name] for name in undecided)
        if len(undecided) < 2:
            return []
        leaver = max(enumerate(undecided), key=lambda entry: (self._doubts[agents[entry[1]]], entry[0]))[1]
        words = _NOT_TOLD_APART.format(names=" and ".join(undecided), node=leaver)
        return [Leave(leaver, words, diagnosis.nodes[leaver].text)]


def _nodes(world: Nodes) -> dict[str, NodeStatus]:
    return {view.status.agent_id: view.status for view in world.views()}


def _names(nodes: Iterable[NodeStatus]) -> dict[str, str]:
    """Return people's name for each agent's node: its host and, where that is not unique, more."""
    known = list(nodes)
    hosts = Counter(status.host for status in known)
    names: dict[str, str] = {}
    taken: set[str] = set()
    for status in known:
        alone = status.host and hosts[status.host] == 1
        name = status.host if alone else f"{status.host or 'node'} ({status.agent_id[:6]})"
        while name in taken:  # a host may have the same name as another node's label
            name = f"{name} ({status.agent_id})"
        taken.add(name)
        names[status.agent_id] = name
    return names
