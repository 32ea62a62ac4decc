"""Plays a check on a cluster and compares its diagnosis with the truth.

Some faults cannot be determined, and are only counted when they are not found:

1. A faulty node whose own check passes, if no two healthy nodes are left that can reach each other.
2. A node that dies after its last trial.
3. A slow property of a node or link, if too few others are left for comparison. Two nodes are no measure of a network.
   Slow networks and bad links together must be a quarter of the nodes at most (of three nodes one). Nodes that are slow
   in the same measure of their own must be a third at most.
4. A bad link without a trial, a link with a faulty end, and a slow link that was only tried beside others.
5. A slow property of an undecided node.
"""

import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

from taskd.core.nodecheck.check import NodeCheck
from taskd.core.nodecheck.diagnosis import CheckDiagnosis, NodeHealth
from taskd.core.nodecheck.evidence import Edge, Round
from taskd.core.nodecheck.own import What
from taskd.core.nodecheck.pairing import rounds_at_most
from tests.clusters.cluster import Cluster, Fault


@dataclass
class Played:
    """One check, and its comparison with the truth."""

    cluster: Cluster
    diagnosis: CheckDiagnosis
    rounds: list[Round]
    bound: int
    plan_s: float
    told: Counter[str] = field(default_factory=Counter)
    untold: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def conduct(check: NodeCheck, cluster: Cluster) -> tuple[list[Round], float]:
    """Play all rounds of a check. Return them, and the longest CPU time to plan one, in seconds."""
    rounds: list[Round] = []
    plan_s = 0.0
    while True:
        begun_s = time.process_time()
        round_ = check.plan()
        plan_s = max(plan_s, time.process_time() - begun_s)
        if round_ is None:
            return rounds, plan_s
        rounds.append(round_)
        check.take(round_.number, cluster.owns(round_), cluster.trials(round_))


def play(cluster: Cluster) -> Played:
    """Play a whole check, and compare it."""
    check = NodeCheck(cluster.names)
    rounds, plan_s = conduct(check, cluster)
    played = Played(cluster, check.diagnosis(), rounds, _bound(cluster), plan_s)
    _Comparison(played).compare()
    if len(rounds) > played.bound:
        played.wrong.append(f"{len(rounds)} rounds, the bound is {played.bound}")
    return played


def _bound(cluster: Cluster) -> int:
    late = sum(fault is Fault.LATE for fault in cluster.faults.values())
    spoilt = min(late, 2)  # they all die in the second round: few are met after it
    slow = len(cluster.slow_networks) + len(cluster.slow_links)
    links = bool(cluster.down or cluster.flickering)
    own = len(cluster.faults) - late + len(cluster.stumbling) + len(cluster.slow_own)
    hits = len(cluster.faults) - late + len(cluster.down) + len(cluster.flickering)
    return max(rounds_at_most(len(cluster.names), hits, links=links, slow=slow, late=spoilt), 1 + (own > 0))


class _Comparison:
    def __init__(self, played: Played) -> None:
        self.played, self.cluster, self.diagnosis = played, played.cluster, played.diagnosis
        self.number = len(played.rounds)
        self.alone: set[Edge] = set()
        self.tried: dict[Edge, list[int]] = {}
        self.newest: dict[str, int] = {}
        for round_ in played.rounds:
            self.alone |= set(round_.edges) - round_.shared
            for edge in round_.edges:
                self.tried.setdefault(edge, []).append(round_.number)
                self.newest |= dict.fromkeys(edge, round_.number)
        self.well = [name for name in self.cluster.names if name not in self.cluster.faults]
        cluster = self.cluster
        bad_links = len(cluster.slow_links) + len(cluster.down) + len(cluster.flickering)
        self.troubled = len(cluster.slow_networks) + bad_links
        self.reachable = self._is_healthy_pair()

    def compare(self) -> None:
        for name, found in self.diagnosis.nodes.items():
            self._node(name, found.health, found.what)
        self._links()

    def _is_healthy_pair(self) -> bool:
        """Return whether there are two healthy nodes that can reach each other."""
        bad = self.cluster.down | self.cluster.flickering
        return len(self.well) > 2 or any(pair not in bad for pair in pairwise(self.well))

    def _node(self, name: str, health: NodeHealth, what: tuple[What, ...]) -> None:
        truth = self.cluster.faults.get(name)
        if truth is not None:
            self._count(
                f"faulty, {truth.name.lower()}", name, health is NodeHealth.DOWN, must=self._must_find(name, truth)
            )
            if health is NodeHealth.SLOW:
                self.played.wrong.append(f"{name} is {truth}, not slow")
            return
        slow = self._slow(name)
        if health is NodeHealth.DOWN or set(what) - slow.keys():
            self.played.wrong.append(f"{name} is blamed: {health}, {what}")
        if health is NodeHealth.UNDECIDED and self.reachable:
            self.played.wrong.append(f"{name} is undecided")
        for kind, must in slow.items():
            self._count(f"slow, {kind.value}", name, kind in what, must=must)

    def _must_find(self, name: str, truth: Fault) -> bool:
        if truth in (Fault.BROKEN, Fault.DISK, Fault.HANG):
            return True
        return self.reachable and (truth is not Fault.LATE or self.newest[name] > 1)

    def _slow(self, name: str) -> dict[What, bool]:
        """Return the slow properties of the node, each with whether the diagnosis must name it."""
        slow: dict[What, bool] = {}
        decided = self.diagnosis.nodes[name].health is not NodeHealth.UNDECIDED
        if name in self.cluster.slow_own:
            kind = self.cluster.slow_own[name][0]
            same = sum(one is kind for one, _ in self.cluster.slow_own.values())
            slow[kind] = decided and (len(self.well) == 2 or 3 * same <= len(self.well))
        if name in self.cluster.slow_networks:
            number = len(self.well)
            slow[What.NETWORK] = decided and (number >= 4 * self.troubled or (number == 3 and self.troubled == 1))
        return slow

    def _links(self) -> None:
        told = {(link.edge, link.health) for link in self.diagnosis.links}
        truth = {(edge, NodeHealth.DOWN) for edge in self.cluster.down}
        truth |= {(edge, NodeHealth.SLOW) for edge in self.cluster.slow_links}
        self.played.wrong += [f"link {edge} is blamed: {health}" for edge, health in sorted(told - truth, key=str)]
        for edge, health in sorted(truth, key=str):
            tried = edge in self.tried and not self.cluster.faults.keys() & edge
            if health is NodeHealth.SLOW:
                tried = tried and edge in self.alone and edge not in self.cluster.flickering
            enough = len(self.well) >= (3 if health is NodeHealth.DOWN else max(4, 4 * self.troubled))
            self._count(f"link, {health.value}", str(edge), (edge, health) in told, must=tried and enough)

    def _count(self, what: str, who: str, found: bool, *, must: bool) -> None:
        if found:
            self.played.told[what] += 1
        elif must:
            self.played.wrong.append(f"{who} is not found: {what}")
        else:
            self.played.untold[what] += 1
