"""One node check under way: the orders of a round, the reports on it, and its end.

Rules:

1. A round is over when every node that takes part has reported its end, or is silent for `GRACE_S` beyond its limit.
2. The limit of nodes that are still busy shrinks: to a time that the others have shown to be enough, and to `IN_VAIN_S`
   for a node whose partners have all failed.
3. In all judgements, nodes have the names by which people call them; `names` maps their agents to these.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from taskd.core.nodecheck.check import NodeCheck
from taskd.core.nodecheck.diagnosis import CheckDiagnosis, Leave
from taskd.core.nodecheck.evidence import CheckPolicy, Edge, Margins, Round, RoundTimeout, merged, timeout_s
from taskd.core.policy import NodeCheckPolicy, Policy
from taskd.wire.checks import CheckOrder, CheckReport, Own, Trial, TrialResult
from taskd.wire.kinds import NodeRank
from taskd.wire.messages import NodeStatus

GRACE_S = 5.0
"""Seconds after its limit when an agent counts as silent. An agent ends its own check processes in time."""
IN_VAIN_S = 2.0
"""Most seconds that a node goes on waiting after its partner has failed: it waits for nothing."""


def limits(policy: NodeCheckPolicy) -> CheckPolicy:
    """Return the policy of the check. The other margins follow the one that is given."""
    margin = policy.margin
    margins = Margins(
        compute=margin,
        memory=margin,
        loopback=margin,
        disk=2 * margin,
        bandwidth=1.5 * margin,
        latency=3 * margin,
    )
    return CheckPolicy(margins, RoundTimeout(most_s=policy.timeout_s))


@dataclass(frozen=True, slots=True)
class RoundOver:
    """End of a round. `elapsed_s`: seconds of each node, by its place, or by its name if it has no place."""

    number: int
    elapsed_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Checked:
    """End of a check."""

    diagnosis: CheckDiagnosis
    rounds: int
    lasted_s: float
    leaves: tuple[Leave, ...]
    own: Mapping[str, Own]
    """Each node's own results, by its name."""
    inspection: bool = False
    """True if a person has only asked for the result: nothing follows from it."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A node that has to leave. Another one is wanted in its place."""

    node_rank: NodeRank
    reason: str


Action = RoundOver | Checked | Wanted


@dataclass(slots=True)
class CheckRun:
    """One check. `names`: by agent. `number`: of the orders under way. `strict`: slow nodes leave too."""

    policy: Policy
    check: NodeCheck
    names: Mapping[str, str]
    strict: bool
    began_s: float
    number: int
    inspection: bool = False
    rounds: int = 0
    own: dict[str, Own] = field(default_factory=dict)
    _since_s: float = 0.0
    _orders: dict[str, CheckOrder] = field(default_factory=dict)
    _heard: dict[str, CheckReport] = field(default_factory=dict)
    """Newest report of each node in this round, done or not."""

    @property
    def _reports(self) -> dict[str, CheckReport]:
        """Reports of the agents that are done, by agent."""
        return {agent: report for agent, report in self._heard.items() if report.done}

    def _has_reported(self, agent: str) -> bool:
        return agent in self._heard and self._heard[agent].done

    @property
    def all_reported(self) -> bool:
        """True if the round is over."""
        return len(self._reports) == len(self._orders)

    def order_for(self, agent: str) -> CheckOrder | None:
        """Return an agent's order; None if it has none, or has carried it out."""
        return None if self._has_reported(agent) else self._orders.get(agent)

    def start_round(self, nodes: Mapping[str, NodeStatus], now_s: float) -> None:
        """Write the orders of the next round."""
        following = self._round()
        self._since_s, self._heard = now_s, {}
        agents = {name: agent for agent, name in self.names.items()}
        edges: dict[str, list[Edge]] = {name: [] for name in following.own}
        for edge in following.edges:
            for name in edge:
                edges.setdefault(name, []).append(edge)
        self._orders = {
            agent: CheckOrder(
                job_id=self.policy.job_id,
                number=self.number,
                own=name in following.own,
                trials=tuple(self._trial(edge, name, agents, nodes) for edge in edges[name]),
                timeout_s=self.policy.node_check.timeout_s,
                clock_s=0.0,
            )
            for agent, name in self.names.items()
            if name in edges
        }

    def _round(self) -> Round:
        following = self.check.plan()
        assert following is not None, "only a check that is not decided has another round"
        return following

    def _trial(self, edge: Edge, name: str, agents: Mapping[str, str], nodes: Mapping[str, NodeStatus]) -> Trial:
        first, second = edge
        host = nodes.get(agents[first])
        return Trial(
            peer=second if name == first else first,
            name=f"check/{self.number}/{agents[first]}/{agents[second]}",
            first=name == first,
            store_host=host.store_host if host is not None else "",
            store_port=host.store_port if host is not None else 0,
            store_key=host.store_key if host is not None else "",
        )

    def listen(self, nodes: Mapping[str, NodeStatus], now_s: float) -> None:
        """Receive the reports of the nodes."""
        for agent, order in self._orders.items():
            if self._has_reported(agent):
                continue
            status = nodes.get(agent)
            report = None if status is None or status.check is None else status.check.report
            gone = status is None or status.leaving
            if report is not None and report.number == self.number:
                self._heard[agent] = report
            if not self._has_reported(agent) and (gone or now_s - self._since_s > order.timeout_s + GRACE_S):
                self._heard[agent] = _silent(order, gone=gone)
        self._hurry(now_s)

    def _hurry(self, now_s: float) -> None:
        """Shorten the limits of nodes that are still busy (rule 2)."""
        heard = {self.names[agent]: known for agent, known in self._heard.items()}
        ended = [trial.elapsed_s for known in heard.values() for trial in known.trials if trial.ok]
        timeout = limits(self.policy.node_check).timeout
        most = 2 * len(ended) >= sum(len(order.trials) for order in self._orders.values())
        enough_s = timeout_s(ended, timeout) if most else timeout.most_s
        for agent, order in self._orders.items():
            if self._has_reported(agent):
                continue
            name = self.names[agent]
            known = {trial.peer for trial in heard[name].trials} if name in heard else set()
            waiting = [trial.peer for trial in order.trials if trial.peer not in known]
            limit_s = min(order.timeout_s, enough_s)
            if waiting and all(_has_failed(heard.get(peer), name) for peer in waiting):
                limit_s = min(limit_s, now_s - self._since_s + IN_VAIN_S)
            if limit_s < order.timeout_s:
                self._orders[agent] = msgspec.structs.replace(order, timeout_s=limit_s)

    def end_round(self, nodes: Mapping[str, NodeStatus], now_s: float) -> RoundOver:
        """Pass the results to the check, and return the end of the round."""
        lasted_s = now_s - self._since_s
        over = self._round()
        by_name = {self.names[agent]: report for agent, report in self._reports.items()}
        own = {name: report.own for name, report in by_name.items() if report.own is not None}
        self.own.update(own)
        trials = {edge: merged(_seen_by(by_name, *edge), _seen_by(by_name, *reversed(edge))) for edge in over.edges}
        self.check.take(over.number, own, trials)
        self.rounds += 1
        elapsed = {
            _place(nodes.get(agent), self.names[agent]): min(lasted_s, _elapsed_s(report))
            for agent, report in self._reports.items()
        }
        return RoundOver(self.rounds - 1, elapsed)


def _place(status: NodeStatus | None, name: str) -> str:
    place = -1 if status is None else max(status.wants, status.node_rank)
    return str(place) if place >= 0 else name


def _silent(order: CheckOrder, *, gone: bool) -> CheckReport:
    """Return the report that is recorded for an agent without an answer."""
    cause = "its agent has left" if gone else "its agent does not answer"
    return CheckReport(
        number=order.number,
        done=True,
        own=Own(ok=False, cause=cause) if order.own else None,
        trials=tuple(TrialResult(peer=trial.peer, ok=False, cause=cause) for trial in order.trials),
    )


def _has_failed(report: CheckReport | None, peer: str) -> bool:
    return report is not None and any(not trial.ok for trial in report.trials if trial.peer == peer)


def _seen_by(reports: Mapping[str, CheckReport], name: str, peer: str) -> TrialResult | None:
    return next((trial for trial in reports[name].trials if trial.peer == peer), None)


def _elapsed_s(report: CheckReport) -> float:
    own_s = report.own.elapsed_s if report.own is not None else 0.0
    return own_s + max((trial.elapsed_s for trial in report.trials), default=0.0)
