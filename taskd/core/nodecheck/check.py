"""A check of nodes against each other: its next trials, and the results so far.

Rules:

1. `plan` returns the trials that run at the same time, and `take` receives their results, until `plan` has no more.
2. A node's life is decided before its speed. Trials for suspects take the nodes that they need. Links and slow parts
   are tried again with the nodes that are left.
3. A failure or slowness is tried again before any node is blamed.
4. Nothing depends on chance or on the order of a mapping: the same answers lead to the same rounds and diagnosis.

`evidence` defines the evidence, `pairing` the pairs and the bound on the rounds, `own` and `network` slowness, and
`diagnosis` the nodes that leave.
"""

from collections.abc import Iterable, Mapping

from taskd.core.nodecheck.diagnosis import CheckDiagnosis, judge
from taskd.core.nodecheck.evidence import CheckPolicy, Edge, Measured, Round, RoundResults
from taskd.core.nodecheck.network import Network
from taskd.core.nodecheck.own import Baseline, OwnRates
from taskd.core.nodecheck.pairing import Circle, first_edges, life_edges, link_edges, most_rounds
from taskd.errors import TransitionError
from taskd.wire.checks import Own


class NodeCheck:
    """One check, from its first round to its diagnosis.

    Args:
        nodes: nodes to judge, in the order of their places.
        policy: margins and times.
        known_good: nodes of a running world, as partners for newcomers. They are not judged.
        baseline: measurements of that world.

    """

    def __init__(
        self,
        nodes: Iterable[str],
        policy: CheckPolicy | None = None,
        known_good: Iterable[str] = (),
        baseline: Baseline | None = None,
    ) -> None:
        self._policy = policy or CheckPolicy()
        self._past = baseline or Baseline()
        self._results = RoundResults(tuple(nodes), tuple(known_good))
        if len(self._results.index) != len(self._results.names):
            raise ValueError(
                f"a node is named twice in {self._results.names}; name each once, newcomers not as known good"
            )
        self._own = OwnRates(self._policy, self._past, self._results.judged)
        self._bandwidth = Network(self._results, self._policy, self._past, latency=False)
        self._latency = Network(self._results, self._policy, self._past, latency=True)
        self._circle = Circle(self._results.names)
        self._open: Round | None = None
        self._number = 0

    @property
    def rounds(self) -> int:
        """Number of rounds that have been planned."""
        return self._number

    def plan(self) -> Round | None:
        """Return the round that is under way, or the next one; None when nothing more can be learned."""
        if self._open is None and self._number < most_rounds(len(self._results.names)):
            edges, own = self._next()
            if edges or own:
                self._number += 1
                self._open = Round(self._number, tuple(edges), tuple(own))
        return self._open

    def take(self, number: int, own: Mapping[str, Own], trials: Mapping[Edge, Measured]) -> None:
        """Record the results of the round under way. A missing result counts as a failure."""
        if self._open is None or self._open.number != number:
            now = f"round {self._open.number} is" if self._open is not None else "no round is"
            raise TransitionError(
                f"results of round {number} came while {now} under way; give each round's results once"
            )
        self._results.take(self._open, own, trials)
        self._own.take({name: own[name] for name in self._open.own if name in own})
        results = {edge: trials[edge] for edge in self._open.edges if edge in trials}
        for network in (self._bandwidth, self._latency):
            network.take(results)
        self._open = None

    def diagnosis(self) -> CheckDiagnosis:
        """Return the diagnosis so far. It is final when `plan` returns None."""
        return judge(self._results, self._own.slow(), (self._bandwidth, self._latency), self._policy)

    def baseline(self) -> Baseline:
        """Return the reference for later newcomers: own results of nodes that are well, and usual network speeds."""
        well = {
            name: found[-1] for name, found in self._results.own.items() if found and name not in self._results.down
        }
        return Baseline(
            own={**self._past.own, **well},
            gbps=self._bandwidth.typical() or self._past.gbps,
            latency_s=self._latency.typical() or self._past.latency_s,
        )

    def _next(self) -> tuple[list[Edge], list[str]]:
        results = self._results
        if not self._number:
            return first_edges(results), list(results.judged)
        edges = life_edges(results, self._circle, self._number + 1)
        edges += link_edges(results, (name for edge in edges for name in edge))
        edges += _speed_edges(results, (self._bandwidth, self._latency), {name for edge in edges for name in edge})
        slow = self._own.slow()
        again = [
            name for name in results.judged if results.own_failed(name) or (name in slow and len(results.own[name]) < 2)
        ]
        return edges, [name for name in again if name not in results.down]


def _speed_edges(results: RoundResults, networks: Iterable[Network], busy: set[str]) -> list[Edge]:
    """Return trials that have both of their ends to themselves.

    They join a node in doubt with a fast one, or repeat a link that was slow once.
    """
    edges = []
    for network in networks:
        suspects = network.suspects()
        fast = (name for name in results.names if suspects and name not in busy and network.is_fast(name))
        free = {name: None for name in fast if results.is_good(name)}
        for name in suspects:
            partner = (
                _fast_partner(results, network, name, free) if name not in busy and results.is_good(name) else None
            )
            if partner is not None:
                edges.append(results.edge(name, partner))
                busy |= {name, partner}
                del free[partner]
        for edge in network.open_links():
            if busy.isdisjoint(edge) and all(map(results.is_good, edge)):
                edges.append(edge)
                busy.update(edge)
    return edges


def _fast_partner(results: RoundResults, network: Network, name: str, free: Mapping[str, None]) -> str | None:
    """Return a fast node that this one was not tried with, or never alone; None if there is none.

    If there is only one other node, it may be tried again.
    """
    met = dict.fromkeys(results.passed_with[name])
    for peer in met:
        if peer in free and network.is_promising(results.edge(name, peer)):
            return peer
    for peer in free:
        if results.edge(name, peer) not in results.tries or (
            len(results.names) == 2 and len(results.passed_with[name]) < 2
        ):
            return peer
    return next((peer for peer in met if peer in free and not network.is_alone(results.edge(name, peer))), None)
