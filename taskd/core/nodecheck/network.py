"""Speed of the nodes' networks, from trials: bandwidth and latency, each in a `Network` of its own.

Rules:

1. Every measurement is a rate (for a latency, its inverse). The best counts.
2. A trial whose ends had no other one is *alone* and shows the rate of both. From simultaneous trials, a node has shown
   at least the sum of their rates. Each of its links has at most its own rate times their number. That number excuses
   a latency.
3. The usual rate is the median of the rates that the nodes may have. Of an even number, the faster one of the middle
   two counts, because a slow node also shows in its partner's rate. A node is *fast* if the rate that it has shown is
   within the margin of the usual one.
4. A node that is not fast is slow after trials with two fast nodes. It was alone with both, or alone with one while
   none of these rates allows it to be fast. If there is only one other node, known to be good, two trials with that
   one decide. Until a node is fast or slow, it is a suspect.
5. A link between fast nodes that is not fast itself is slow when it was so in two rounds, once alone.
6. A newcomer is compared with the rates measured in the running world, and that world's nodes count as fast. Without
   such a baseline, two nodes are never compared: each shows the rate of the other.
"""

from collections import defaultdict

from taskd.core.nodecheck.evidence import CheckPolicy, Edge, Measured, RoundResults
from taskd.core.nodecheck.own import Baseline, compared, median, median_of_others


class Network:
    """One dimension of the nodes' networks: bandwidth or latency."""

    def __init__(self, results: RoundResults, policy: CheckPolicy, baseline: Baseline, *, latency: bool) -> None:
        self._results, self._latency, self._floor_s = results, latency, policy.latency_floor_s
        self._given_margin = policy.margins.latency if latency else policy.margins.bandwidth
        self._cpu_factor = policy.cpu_factor
        self._shown: dict[str, float] = {}
        self._possible: dict[str, float] = {}
        self._alone: dict[Edge, float] = {}
        self._shared: dict[Edge, float] = {}
        self._past = self._rate(Measured(ok=True, gbps=baseline.gbps, latency_s=baseline.latency_s))
        self._trusted = frozenset(results.known_good if self._past > 0 else ())
        self._least = self._past / self._margin

    @property
    def _margin(self) -> float:
        return self._given_margin * (self._cpu_factor if self._results.moved_by_cpus else 1.0)

    def take(self, results: dict[Edge, Measured]) -> None:
        """Record the results of a round."""
        together: dict[str, list[float]] = defaultdict(list)
        for edge, measured in results.items():
            rate = self._rate(measured) if measured.ok else 0.0
            if rate > 0:
                self._note(edge, rate)
                together[edge[0]].append(rate)
                together[edge[1]].append(rate)
        for name, rates in together.items():
            shown = max(rates) * len(rates) if self._latency else sum(rates)
            self._shown[name] = max(self._shown.get(name, 0.0), shown)
        self._least = (self._past or self._usual()) / self._margin

    def is_fast(self, name: str) -> bool:
        """Return whether the node is fast (rule 3)."""
        return name in self._trusted or self._shown.get(name, 0.0) >= self._least > 0

    def suspects(self) -> list[str]:
        """Return the nodes for which it is not known yet whether they or their links are slow."""
        return [name for name in self._low() if not self._is_enough(name)]

    def slow(self) -> dict[str, str]:
        """Return the slow nodes (rule 4), each with a sentence."""
        slow = (name for name in self._low() if self._is_enough(name))
        return {name: self._text("has a network that", self._shown[name]) for name in slow}

    def slow_links(self) -> dict[Edge, str]:
        """Return the slow links (rule 5), each with a sentence."""
        slow = (edge for edge in self._low_links() if self._is_tried_again(edge))
        return {edge: self._text("what is between them", self._link(edge)) for edge in slow}

    def open_links(self) -> list[Edge]:
        """Return the links that may be slow and must be tried again, alone."""
        return [edge for edge in self._low_links() if not self._is_tried_again(edge)]

    def is_alone(self, edge: Edge) -> bool:
        """Return whether the edge was measured alone."""
        return edge in self._alone

    def is_promising(self, edge: Edge) -> bool:
        """Return whether the edge has shared its ends with others, and may be fast."""
        return edge not in self._alone and self._shared.get(edge, 0.0) >= self._least

    def typical(self) -> float:
        """Return the median of the measurements, in their unit; 0.0 if nothing was measured."""
        rate = median(self._possible.values()) if self._possible else 0.0
        return 1 / rate if rate and self._latency else rate

    def _usual(self) -> float:
        """Return the median of the rates that nodes may have; 0.0 if nothing was measured."""
        ordered = sorted(self._possible.values())
        return ordered[len(ordered) // 2] if ordered else 0.0

    def _rate(self, measured: Measured) -> float:
        if self._latency:
            return 1 / max(measured.latency_s, self._floor_s) if measured.latency_s > 0 else 0.0
        return measured.gbps

    def _note(self, edge: Edge, rate: float) -> None:
        newest = self._results.tries[edge][-1]
        rates, most = (self._alone, rate) if newest.alone else (self._shared, rate * newest.load)
        rates[edge] = max(rates.get(edge, 0.0), most)
        for name in edge:
            if most > self._possible.get(name, 0.0):
                self._possible[name] = most

    def _link(self, edge: Edge) -> float:
        return self._alone.get(edge) or self._shared.get(edge, 0.0)

    def _low(self) -> list[str]:
        least, down = self._least, self._results.down
        shown = self._shown
        return [name for name in self._results.judged if shown.get(name, least) < least and name not in down]

    def _low_links(self) -> list[Edge]:
        known, index = len(self._results.known_good), self._results.index
        slow = [edge for rates in (self._alone, self._shared) for edge, rate in rates.items() if rate < self._least]
        return [
            edge
            for edge in dict.fromkeys(slow)
            if index[edge[1]] >= known and self._link(edge) < self._least and all(map(self.is_fast, edge))
        ]

    def _is_enough(self, name: str) -> bool:
        met = self._results.passed_with[name]
        partners = [peer for peer in dict.fromkeys(met) if self.is_fast(peer)]
        edges = [self._results.edge(name, peer) for peer in partners]
        alone = sum(map(self.is_alone, edges))
        if len(self._results.names) == 2:
            return alone > 0 and len(met) >= 2
        return alone >= 2 or (alone == 1 < len(edges) and all(self._link(edge) < self._least for edge in edges))

    def _is_tried_again(self, edge: Edge) -> bool:
        return edge in self._alone and sum(found.measured.ok for found in self._results.tries[edge]) >= 2

    def _text(self, subject: str, rate: float) -> str:
        others = self._past or median_of_others(self._possible.values())
        if not self._latency:
            return f"{subject} moves {compared(rate, others, 'GB/s', self._margin)}"
        ratio = f"{others / rate:.1f} times slower, {self._margin:g} are allowed"
        waits = f"{1000 / rate:.3g} ms, the others after {1000 / others:.3g} in the median"
        return f"{subject} answers after {waits}: {ratio}"
