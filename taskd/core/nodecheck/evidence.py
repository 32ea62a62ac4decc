"""Results of trials between nodes, and the conclusions about the nodes' life.

Rules:

1. A trial passes or fails for both of its nodes. A pass proves that both lived in that round.
2. A failure counts against a node if the other one is known to have lived in that round or later, but the node itself
   is not. Such a failure is *firm*. For any other failure, the blame is open.
3. One firm failure may be a bad link. Two, with two partners, are the node's; so are two failures of its own check in
   a row. Only a node with a single partner in all, known to be good, is judged by two failures with that one.
4. A node is *good* if it has passed a trial or belongs to a running world. It is not good after a later round in which
   it has failed and not passed. A node that has failed and is neither good nor down is a *suspect*.
5. A link is down if its trial has failed in two rounds and both of its ends have lived in the last of them or later.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from taskd.wire.checks import Own, TrialResult

Edge: TypeAlias = tuple[str, str]
"""Two nodes, in the order of their places."""

NEVER: Final = -1
_NO_RESULT: Final = "no result came in time"


@dataclass(frozen=True, slots=True)
class Margins:
    """Factors by which a node may be slower than the others."""

    compute: float = 1.5
    memory: float = 2.0
    loopback: float = 2.0
    disk: float = 4.0
    bandwidth: float = 2.0
    latency: float = 4.0


@dataclass(frozen=True, slots=True)
class RoundTimeout:
    """Limits of the time that a round may take."""

    most_s: float = 300.0
    least_s: float = 15.0
    factor: float = 4.0
    """Limit in multiples of the time in which half of the results have come."""


@dataclass(frozen=True, slots=True)
class CheckPolicy:
    """Allowed differences between nodes, and the time that a check may take."""

    margins: Margins = Margins()
    timeout: RoundTimeout = RoundTimeout()
    cpu_factor: float = 2.0
    """Factor on the margins of bandwidth and latency where CPUs move the bytes (gloo): they have other work, too."""
    latency_floor_s: float = 0.0005
    """Least latency that counts, in seconds. Shorter ones count as this one, because they delay nobody."""
    deviations: float = 6.0
    """Median absolute deviations that must also lie between a slow node and the median."""
    clock_skew_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Measured:
    """One trial, as both of its nodes together have seen it. A rate of 0.0 was not measured."""

    ok: bool
    cause: str = ""
    gbps: float = 0.0
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Round:
    """Trials and own checks that run at the same time.

    Attributes:
        number: from 1.
        edges: each is one trial, with processes of its own on both nodes.
        own: nodes that check themselves (once more).

    """

    number: int
    edges: tuple[Edge, ...]
    own: tuple[str, ...]

    @property
    def shared(self) -> frozenset[Edge]:
        """Edges with an end that has other trials at the same time. They prove life, but only a part of the speed."""
        load = Counter(name for edge in self.edges for name in edge)
        return frozenset(edge for edge in self.edges if max(load[edge[0]], load[edge[1]]) > 1)


@dataclass(frozen=True, slots=True)
class Try:
    """One result of one edge.

    Attributes:
        alone: neither end had another trial in that round.
        load: number of passed trials of that round at the busier end. Trials that hang move no bytes.

    """

    number: int
    measured: Measured
    alone: bool
    load: int


def timeout_s(finished_s: Iterable[float], timeout: RoundTimeout) -> float:
    """Return how long a round may take, in seconds since its start, from the times of those that have finished."""
    known = sorted(finished_s)
    if not known:
        return timeout.most_s
    usual_s = known[len(known) // 2]
    return min(timeout.most_s, max(timeout.least_s, timeout.factor * usual_s))


def merged(left: TrialResult | None, right: TrialResult | None) -> Measured:
    """Merge the reports of both ends into one trial: the worse value of each. An end without a report has failed."""
    if left is None or right is None:
        silent = Measured(ok=False, cause=_NO_RESULT)
        told = left or right
        return silent if told is None or told.ok else Measured(ok=False, cause=told.cause or _NO_RESULT)
    return Measured(
        ok=left.ok and right.ok,
        cause=(left.cause if not left.ok else "") or (right.cause if not right.ok else ""),
        gbps=min(left.gbps, right.gbps),
        latency_s=max(left.latency_s, right.latency_s),
    )


class RoundResults:
    """Results of all rounds so far. Nodes are in the order of their places, after those that are known to be good."""

    def __init__(self, nodes: tuple[str, ...], known_good: tuple[str, ...]) -> None:
        self.judged, self.known_good = nodes, known_good
        self.names = (*known_good, *nodes)
        self.index = {name: index for index, name in enumerate(self.names)}
        self.own: dict[str, list[Own]] = {name: [] for name in nodes}
        self.tries: dict[Edge, list[Try]] = {}
        self.down: set[str] = set()
        self.passed_in = {name: 0 if name in known_good else NEVER for name in self.names}
        """Newest round in which the node has passed a trial."""
        self.passed_with: dict[str, list[str]] = {name: [] for name in self.names}
        self._failures: dict[str, list[tuple[str, int]]] = {name: [] for name in self.names}

    @property
    def moved_by_cpus(self) -> bool:
        """True if the nodes have no accelerators that move their data."""
        newest = (results[-1].versions for results in self.own.values() if results)
        return any(versions.get("backend", "").startswith("gloo") for versions in newest)

    def edge(self, one: str, other: str) -> Edge:
        """Return the edge of two nodes, in their order."""
        return (one, other) if self.index[one] < self.index[other] else (other, one)

    def take(self, round_: Round, own: Mapping[str, Own], trials: Mapping[Edge, Measured]) -> None:
        """Record the results of a round. A missing result is a failure."""
        for name in round_.own:
            self.own[name].append(own.get(name) or Own(ok=False, cause=_NO_RESULT))
        results = {edge: trials.get(edge) or Measured(ok=False, cause=_NO_RESULT) for edge in round_.edges}
        shared = round_.shared
        passed = Counter(name for edge, result in results.items() if result.ok for name in edge)
        for (one, other), result in results.items():
            found = Try(round_.number, result, (one, other) not in shared, max(passed[one], passed[other]))
            self.tries.setdefault((one, other), []).append(found)
            for name, peer in ((one, other), (other, one)):
                if result.ok:
                    self.passed_in[name] = round_.number
                    self.passed_with[name].append(peer)
                else:
                    self._failures[name].append((peer, round_.number))
        self.down |= {name for name in self.names if name not in self.down and self._is_down(name)}

    def own_failed(self, name: str) -> int:
        """Return how often in a row, up to now, the node's own check has failed."""
        failed = 0
        for result in reversed(self.own.get(name, [])):
            if result.ok:
                break
            failed += 1
        return failed

    def failures(self, name: str) -> list[tuple[str, int]]:
        """Return the partner and the round of each failure since the node was last seen alive."""
        return [(peer, number) for peer, number in self._failures[name] if number > self.passed_in[name]]

    def firm(self, name: str) -> list[str]:
        """Return the partners of the node's firm failures (rule 2)."""
        return list(dict.fromkeys(peer for peer, number in self.failures(name) if self.passed_in[peer] >= number))

    def is_good(self, name: str) -> bool:
        """Return whether the node is good (rule 4)."""
        return name not in self.down and self.passed_in[name] != NEVER and not self.failures(name)

    def suspects(self) -> list[str]:
        """Return the suspects (rule 4)."""
        return [name for name in self.names if name not in self.down and self.failures(name)]

    def failed_rounds(self, edge: Edge) -> int:
        """Return in how many rounds the edge has failed since it last passed."""
        failed = 0
        for found in reversed(self.tries.get(edge, [])):
            if found.measured.ok:
                break
            failed += 1
        return failed

    def failed_links(self) -> list[Edge]:
        """Return failed edges between good nodes that have lived at that time, at least one of them judged."""
        return [
            edge
            for edge, tries in self.tries.items()
            if not tries[-1].measured.ok
            and all(self.passed_in[name] >= tries[-1].number and self.is_good(name) for name in edge)
            and self.index[edge[1]] >= len(self.known_good)
        ]

    def _is_down(self, name: str) -> bool:
        if self.own_failed(name) >= 2 or len(self.firm(name)) >= 2:
            return True
        only = self.known_good[0] if len(self.known_good) == 1 else None
        return name != only and Counter(peer for peer, _ in self.failures(name))[only or ""] >= 2
