"""Pairs of nodes for the next round of a check.

Rules:

1. The first round consists of disjoint pairs in the order of the nodes. An odd number ends with three nodes whose three
   edges run at the same time, so that one faulty node among them is identified at once. A newcomer is paired with a
   node known to be good.
2. Two good nodes that have passed together take two suspects, and all six edges between the four run. So each suspect
   is tried with two good ones, and the good ones prove in the same round that they still live. Suspects that failed
   with each other are tried again, which identifies a link that is down.
3. With fewer than two good nodes, the circle method goes through all pairs. It begins with the nodes that are in doubt
   only because of a partner whose own check has failed. No pair is tried twice, except among three nodes at most, or
   with the only one that is still good.
4. No node has more than three trials at a time. Groups that run at the same time have no node in common.
5. Links that have failed between good nodes are tried again two by two, with all six edges between their ends. A single
   one is tried again with two other good nodes.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, islice
from typing import Final

from taskd.core.nodecheck.evidence import Edge, RoundResults

MOST_TRIALS: Final = 3


def first_edges(results: RoundResults) -> list[Edge]:
    """Return the trials of the first round (rule 1)."""
    met = len(results.known_good)
    pairs = list(zip(results.known_good, results.judged, strict=False))
    rest = results.judged[met:]
    groups = [list(pair) for pair in pairs] + [list(rest[at : at + 2]) for at in range(0, len(rest), 2)]
    if len(groups) > 1 and len(groups[-1]) == 1:
        groups[-2:] = [groups[-2] + groups[-1]]
    return _all_edges(results, groups)


def life_edges(results: RoundResults, circle: "Circle", number: int) -> list[Edge]:
    """Return trials for nodes that may be down (rules 2 and 3); empty without such, or if no more can be learned."""
    suspects = results.suspects()
    if not suspects:
        return []
    pairs = _good_pairs(results)
    if not pairs:
        single = [name for name in results.names if results.is_good(name)]
        groups = [[*single, *_couples(results, suspects)[0]]] if single else []
        return circle.edges(results, number) or _all_edges(results, groups)
    return _all_edges(
        results, ((*pair, *couple) for pair, couple in zip(pairs, _couples(results, suspects), strict=False))
    )


def link_edges(results: RoundResults, busy: Iterable[str]) -> list[Edge]:
    """Return trials of links that have failed once, together with trials that show the life of their ends (rule 5)."""
    used = set(busy)
    links: list[Edge] = []
    for edge in results.failed_links():
        if results.failed_rounds(edge) < 2 and used.isdisjoint(edge):
            links.append(edge)
            used.update(edge)
    groups = [[*one, *other] for one, other in zip(links[::2], links[1::2], strict=False)]
    if len(links) % 2:
        groups.append([*links[-1], *_good_partners(results, links[-1], used)])
    return _all_edges(results, groups)


class Circle:
    """All pairs of nodes, in turns of disjoint pairs: the schedule of a tournament. A round plays some turns."""

    def __init__(self, names: Sequence[str]) -> None:
        self._ring: list[str | None] = [*names, *[None] * (len(names) % 2)]
        self._turn = 0

    def edges(self, results: RoundResults, number: int) -> list[Edge]:
        """Return the pairs of as many turns as the nodes can bear; nothing when all pairs have been tried."""
        edges = _hopeful(results)
        load = Counter(name for edge in edges for name in edge)
        while self._turn < len(self._ring) - 1:
            pairs = [pair for pair in self._pairs(results) if pair not in results.tries]
            if any(load[name] >= MOST_TRIALS for pair in pairs for name in pair):
                break
            self._turn += 1
            new = [pair for pair in pairs if pair not in edges]
            edges += new
            load.update(name for pair in new for name in pair)
        if not edges and number == 2:  # at most three nodes, all of whose edges have run in the first round
            return [edge for edge in results.tries if results.down.isdisjoint(edge)]
        return edges

    def _pairs(self, results: RoundResults) -> Iterator[Edge]:
        """Yield the disjoint pairs of this turn, without nodes that are known to be down."""
        fixed, moving = self._ring[0], self._ring[1:]
        ring = [fixed, *moving[self._turn :], *moving[: self._turn]]
        for one, other in zip(ring[: len(ring) // 2], reversed(ring), strict=False):
            if one is not None and other is not None and results.down.isdisjoint((one, other)):
                yield results.edge(one, other)


def rounds_at_most(nodes: int, hits: int, *, links: bool = False, slow: int = 0, late: int = 0) -> int:
    """Return the most rounds that a check of so many nodes takes.

    Each two good nodes take two suspects in a round, and each cause of a failed trial makes two suspects. Let
    S = 2 · hits, and G = nodes - S, rounded down to an even number. The faulty nodes are known after 1 + ceil(S / G)
    rounds. These are 2 rounds if hits are a quarter of the nodes or fewer. All first trials can fail if G < 2. That
    takes 1 + ceil(m / 2) rounds for the circle's m turns, and ceil((nodes - 2) / 2) more; m is nodes - 1 (nodes, if
    they are odd). Of three nodes or fewer, all edges run at once, and once more.

    This follows from the pairing. `tests/clusters` measures the further cost of links, slow nodes and late ones.

    Args:
        nodes: number of tested nodes, with those known to be good.
        hits: number of faulty nodes, with links that are down.
        links: some links are down. This costs one more round, for a link that is met only in a later round. Of three
            nodes, one after the other is then tried alone with the node that both reach: three more.
        slow: number of slow networks and links. They cost two more rounds, with a fast node each, and once more. They
            cost a third one if more than a quarter of the nodes is hit or slow: the usual speed may not be known at
            first.
        late: number of nodes that die between rounds. Each costs one more round (two in all if all die at once).

    """
    suspects = min(nodes, 2 * hits)
    good = (nodes - suspects) // 2 * 2
    if nodes <= 3:
        rounds = 1 + (hits > 0)
    elif good >= 2:
        rounds = 1 - (-suspects // good)
    else:
        rounds = 1 + max(1, -(-(nodes - 1 + nodes % 2) // 2)) - (-(nodes - 2) // 2)
    apart = 0 if not slow else 2 if 4 * (slow + hits) <= nodes else 3
    more = (3 if nodes == 3 else 1) * links + apart + late
    return max(rounds, 2 if more else 1) + more


def most_rounds(nodes: int) -> int:
    """Return the round at which planning ends whatever the answers are, even of nodes that are well only at times."""
    return rounds_at_most(nodes, nodes, links=True, slow=nodes, late=nodes)


def _all_edges(results: RoundResults, groups: Iterable[Sequence[str]]) -> list[Edge]:
    return [results.edge(one, other) for group in groups for one, other in combinations(group, 2)]


def _good_pairs(results: RoundResults) -> list[Edge]:
    """Return good nodes in pairs: those that have passed together, then the others. Nodes that fail alone come last."""
    good = [name for name in results.names if results.is_good(name)]
    good.sort(key=lambda name: results.own_failed(name) > 0)
    free = dict.fromkeys(good)
    pairs = []
    for name in good:
        partner = next((peer for peer in reversed(results.passed_with[name]) if peer in free and name in free), None)
        if partner is not None:
            pairs.append((name, partner))
            del free[name], free[partner]
    rest = list(free)
    return [*pairs, *zip(rest[::2], rest[1::2], strict=False)]


def _couples(results: RoundResults, suspects: list[str]) -> list[tuple[str, ...]]:
    """Return suspects in pairs, preferably those that have failed with each other.

    Nodes whose own check has failed come last.
    """
    waiting = dict.fromkeys(sorted(suspects, key=lambda name: results.own_failed(name) > 0))
    couples: list[tuple[str, ...]] = []
    single: list[str] = []
    while waiting:
        name = next(iter(waiting))
        del waiting[name]
        mate = next((peer for peer, _ in reversed(results.failures(name)) if peer in waiting), None)
        if mate is None:
            single.append(name)
        else:
            del waiting[mate]
            couples.append((name, mate))
    return [*couples, *(tuple(single[at : at + 2]) for at in range(0, len(single), 2))]


def _good_partners(results: RoundResults, link: Edge, used: set[str]) -> list[str]:
    """Return two good nodes that are free, preferably ones that have passed with an end of the link."""
    met = (peer for name in link for peer in reversed(results.passed_with[name]))
    free = (name for name in (*met, *results.names) if name not in used and results.is_good(name))
    return list(islice(dict.fromkeys(free), 2))


def _hopeful(results: RoundResults) -> list[Edge]:
    """Return pairs of nodes that have failed only with nodes whose own check has failed."""
    clean = [
        name
        for name in results.suspects()
        if not results.own_failed(name) and all(results.own_failed(peer) for peer, _ in results.failures(name))
    ]
    pairs = (results.edge(one, other) for one, other in zip(clean[::2], clean[1::2], strict=False))
    return [pair for pair in pairs if pair not in results.tries]
