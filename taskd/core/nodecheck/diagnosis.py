"""Diagnosis of a node check, and the nodes that leave because of it.

Rules:

1. A node is down, slow, healthy or undecided. An undecided node has failed, but no healthy node was there to show why.
   Here, it does not leave for that (but see rule 5 of `scheduler`).
2. Every diagnosis but healthy is a sentence with figures. Where CPUs move the bytes, slow links of a node with slow
   computing prove nothing more.
3. Nodes that are down leave; slow ones only on request. A link takes one of its ends with it: the node that most links
   have in common, of equals the later one. It is never a node that was known to be good before.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from taskd.core.nodecheck.evidence import NEVER, CheckPolicy, Edge, RoundResults
from taskd.core.nodecheck.network import Network
from taskd.core.nodecheck.own import Slowness, What, median

DOWN_WORDS: Final = "The node is down."
SLOW_WORDS: Final = "The node is a straggler and exits."


class NodeHealth(Enum):
    """Health of a node or a link."""

    HEALTHY = "healthy"
    SLOW = "slow"
    DOWN = "down"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class NodeDiagnosis:
    """Diagnosis of one node. `what`: its slow parts. `text`: a sentence without its subject."""

    health: NodeHealth
    text: str = ""
    what: tuple[What, ...] = ()


@dataclass(frozen=True, slots=True)
class LinkDiagnosis:
    """Diagnosis of a link that is down or slow."""

    edge: Edge
    health: NodeHealth
    text: str


@dataclass(frozen=True, slots=True)
class CheckDiagnosis:
    """All findings of a check. Nodes are in the order given; `notes` blame nobody."""

    nodes: dict[str, NodeDiagnosis]
    links: tuple[LinkDiagnosis, ...] = ()
    notes: tuple[str, ...] = ()

    def having(self, health: NodeHealth) -> tuple[str, ...]:
        """Return the nodes of this health."""
        return tuple(name for name, found in self.nodes.items() if found.health is health)


@dataclass(frozen=True, slots=True)
class Leave:
    """A node that must leave. `words`: its last message when it exits. `reason`: the figures."""

    node: str
    words: str
    reason: str


def choose_out(diagnosis: CheckDiagnosis, *, exclude_stragglers: bool) -> tuple[Leave, ...]:
    """Choose the nodes that must leave, in the order of the nodes (rule 3)."""
    out: dict[str, Leave] = {}
    words = {NodeHealth.DOWN: DOWN_WORDS} | ({NodeHealth.SLOW: SLOW_WORDS} if exclude_stragglers else {})
    for name, found in diagnosis.nodes.items():
        if found.health in words:
            out[name] = Leave(name, words[found.health], f"{name} {found.text}")
    links = [link for link in diagnosis.links if link.health in words and out.keys().isdisjoint(link.edge)]
    index = {name: number for number, name in enumerate(diagnosis.nodes)}
    while links:
        shared = Counter(name for link in links for name in link.edge if name in index)
        leaver = max(shared, key=lambda name: (shared[name], index[name]))
        link = next(link for link in links if leaver in link.edge)  # a link that is down, if there is one
        peer = link.edge[0] if link.edge[1] == leaver else link.edge[1]
        out[leaver] = Leave(leaver, f"The link to {peer} is {link.health.value}: {link.text}.", link.text)
        links = [link for link in links if leaver not in link.edge]
    return tuple(sorted(out.values(), key=lambda leave: index[leave.node]))


def judge(
    results: RoundResults, own: dict[str, list[Slowness]], networks: Sequence[Network], policy: CheckPolicy
) -> CheckDiagnosis:
    """Return the diagnosis from the results so far."""
    slow = {name: list(found) for name, found in own.items() if len(results.own[name]) >= 2}
    for network in networks:
        for name, text in network.slow().items():
            slow.setdefault(name, []).append(Slowness(What.NETWORK, text))
    short_of_cpu = {
        name for name, found in slow.items() if results.moved_by_cpus and any(one.what is What.COMPUTE for one in found)
    }
    return CheckDiagnosis(
        nodes={name: _node(results, name, slow.get(name, [])) for name in results.judged},
        links=(*_down_links(results), *(link for link in _slow_links(networks) if not short_of_cpu & {*link.edge})),
        notes=(*_version_notes(results), *_clock_notes(results, policy), *_partner_notes(results)),
    )


def _node(results: RoundResults, name: str, slow: list[Slowness]) -> NodeDiagnosis:
    if name in results.down:
        return NodeDiagnosis(NodeHealth.DOWN, _why_down(results, name))
    unsolved = [peer for peer, _ in results.failures(name) if peer not in results.down]
    if results.own_failed(name):
        return NodeDiagnosis(NodeHealth.UNDECIDED, f"has failed its own check once: {results.own[name][-1].cause}")
    if unsolved:
        who = f"has failed with {_names(unsolved)}: they, it, or the way between is at fault"
        text = f"{who}; its own check has passed, and no healthy node was left to try"
        return NodeDiagnosis(NodeHealth.UNDECIDED, text)
    if slow:
        what = tuple(dict.fromkeys(found.what for found in slow))
        return NodeDiagnosis(NodeHealth.SLOW, "; ".join(found.text for found in slow), what)
    if results.passed_in[name] == NEVER and len(results.names) > 1:
        return NodeDiagnosis(
            NodeHealth.HEALTHY, "has passed its own check; its network was tried only with nodes that are down"
        )
    return NodeDiagnosis(NodeHealth.HEALTHY)


def _why_down(results: RoundResults, name: str) -> str:
    if results.own_failed(name) >= 2:
        causes = dict.fromkeys(result.cause for result in results.own[name][-2:])
        return f"has failed its own check twice: {'; '.join(causes)}"
    firm = results.firm(name)
    if len(firm) >= 2:
        causes = dict.fromkeys(_cause(results, name, peer) for peer in firm)
        return f"has failed with {_names(firm)}, who live ({'; '.join(causes)})"
    only = results.known_good[0]
    return f"has failed twice with {only}, the only node that is known to be good ({_cause(results, name, only)})"


def _cause(results: RoundResults, name: str, peer: str) -> str:
    return results.tries[results.edge(name, peer)][-1].measured.cause


def _names(names: Sequence[str]) -> str:
    *front, last = dict.fromkeys(names)
    return f"{', '.join(front)}{' and ' * bool(front)}{last}"


def _down_links(results: RoundResults) -> Iterator[LinkDiagnosis]:
    for edge in results.failed_links():
        times = results.failed_rounds(edge)
        if times >= 2:
            cause = results.tries[edge][-1].measured.cause
            text = f"{edge[0]} and {edge[1]} work with others and have failed with each other {times} times ({cause})"
            yield LinkDiagnosis(edge, NodeHealth.DOWN, text)


def _slow_links(networks: Sequence[Network]) -> Iterator[LinkDiagnosis]:
    told: dict[Edge, str] = {}
    for network in networks:
        for edge, text in network.slow_links().items():
            told[edge] = f"{told.get(edge, f'{edge[0]} and {edge[1]} are fast with others')}; {text}"
    yield from (LinkDiagnosis(edge, NodeHealth.SLOW, text) for edge, text in told.items())


def _version_notes(results: RoundResults) -> Iterator[str]:
    """Yield a note on each version that differs from that of most nodes."""
    newest = {name: results[-1].versions for name, results in results.own.items() if results}
    for what in sorted({key for versions in newest.values() for key in versions}):
        counts = Counter(versions[what] for versions in newest.values() if what in versions)
        usual, number = counts.most_common(1)[0]
        for name, versions in newest.items():
            if versions.get(what, usual) != usual:
                yield f"{name} has {what} {versions[what]}, {number} of {counts.total()} nodes have {usual}"


def _clock_notes(results: RoundResults, policy: CheckPolicy) -> Iterator[str]:
    clocks = {name: results[-1].clock_s for name, results in results.own.items() if results and results[-1].ok}
    if not clocks:
        return
    usual_s = median(clocks.values())
    for name, clock_s in clocks.items():
        off_s = clock_s - usual_s
        if abs(off_s) > policy.clock_skew_s:
            side = "ahead of" if off_s > 0 else "behind"
            yield f"{name}'s clock is {abs(off_s):.1f} s {side} the others, {policy.clock_skew_s:g} s are allowed"


def _partner_notes(results: RoundResults) -> Iterator[str]:
    """Yield a note on each node that was known to be good and is not any more. Such nodes are not judged here."""
    for name in results.known_good:
        firm = results.firm(name)
        if firm:
            yield f"{name}, a node of the running world, has failed with {_names(firm)}, who live"
