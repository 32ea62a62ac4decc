"""A cluster with known faults, and its answers to a check.

The model:

1. A faulty node fails every trial. Its own check passes (`MUTE`), its own check fails (`BROKEN`), or it never answers
   (`HANG`). Or it is healthy in the first round and silent from the second on (`LATE`). With `DISK`, its own check
   fails and its trials pass.
2. A stumbling node fails its own check once and is not faulty. A flickering link fails in the first round only.
3. A node has at most one bad link, down or slow; with two it would be a bad node. Half of the bad links join partners
   of the first round. Slow links join nodes whose networks are not slow.
4. A trial moves min(share of each end, bandwidth of the link). Simultaneous trials of a node share its bandwidth
   evenly. Latency grows by a half for each other trial. Every measure has 5 % noise (normal). A slow property of a node
   itself exceeds the margin 1.7 times or more (seven times if there are fewer than eight nodes). A slow network has
   2.5 times less bandwidth, or 20 times the latency. A slow link has 8 times less bandwidth.
5. At most a tenth of the nodes is faulty, a tenth slow, and as many links are bad; below ten nodes one of each at most.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from random import Random

import msgspec

from taskd.core.nodecheck.evidence import CheckPolicy, Edge, Measured, Round
from taskd.core.nodecheck.own import What
from taskd.wire.checks import Own

NOISE = 0.05
OWN_RATES = {
    What.COMPUTE: ("compute_tflops", 1.2),
    What.MEMORY: ("memory_gbps", 12.0),
    What.LOOPBACK: ("loopback_gbps", 3.0),
    What.DISK: ("disk_mbps", 400.0),
}
GBPS, LATENCY_S = 10.0, 0.002


class Fault(Enum):
    MUTE = auto()
    HANG = auto()
    BROKEN = auto()
    LATE = auto()
    DISK = auto()


@dataclass
class Line:
    """A network or link relative to the usual one: its share of the bandwidth, its multiple of the latency."""

    bandwidth: float = 1.0
    latency: float = 1.0


@dataclass
class Cluster:
    """A cluster with its true faults."""

    seed: int
    names: tuple[str, ...]
    faults: dict[str, Fault] = field(default_factory=dict)
    down: set[Edge] = field(default_factory=set)
    slow_links: dict[Edge, Line] = field(default_factory=dict)
    slow_own: dict[str, tuple[What, float]] = field(default_factory=dict)
    slow_networks: dict[str, Line] = field(default_factory=dict)
    stumbling: set[str] = field(default_factory=set)
    flickering: set[Edge] = field(default_factory=set)
    versions: dict[str, str] = field(default_factory=dict)
    clocks_s: dict[str, float] = field(default_factory=dict)
    backend: str = "nccl"

    def __post_init__(self) -> None:
        self._noise = Random(self.seed + 1)

    def dead(self, name: str, number: int) -> bool:
        """Return whether the node fails its trials in this round."""
        fault = self.faults.get(name)
        return fault is not None and fault is not Fault.DISK and (fault is not Fault.LATE or number > 1)

    def silent(self, name: str, number: int) -> bool:
        """Return whether the node does not even report a failure."""
        return self.dead(name, number) and self.faults[name] in (Fault.HANG, Fault.LATE)

    def fails(self, edge: Edge, number: int) -> bool:
        return edge in self.down or (number == 1 and edge in self.flickering) or any(self.dead(n, number) for n in edge)

    def owns(self, round_: Round) -> dict[str, Own]:
        return {name: self._own(name, round_.number) for name in round_.own if not self.silent(name, round_.number)}

    def trials(self, round_: Round) -> dict[Edge, Measured]:
        alive = [edge for edge in round_.edges if not self.fails(edge, round_.number)]
        load = Counter(name for edge in alive for name in edge)
        found = {edge: self._measured(edge, load) for edge in alive}
        for edge in round_.edges:
            if edge not in found and not all(self.silent(name, round_.number) for name in edge):
                found[edge] = Measured(ok=False, cause="connection closed by peer")
        return found

    def _own(self, name: str, number: int) -> Own:
        broken = self.faults.get(name) in (Fault.BROKEN, Fault.DISK)
        if broken or (name in self.stumbling and number == 1):
            return Own(ok=False, cause="killed by signal 9")
        what, factor = self.slow_own.get(name, (None, 1.0))
        rates = {rate: usual * self._noisy(factor if kind is what else 1) for kind, (rate, usual) in OWN_RATES.items()}
        clock_s = self.clocks_s.get(name, 0.0) + self._noise.gauss(0, 0.01)
        versions = {"torch": self.versions.get(name, "2.13"), "backend": self.backend}
        return msgspec.structs.replace(Own(ok=True, clock_s=clock_s, versions=versions), **rates)

    def _measured(self, edge: Edge, load: Mapping[str, int]) -> Measured:
        link = self.slow_links.get(edge, Line())
        ends = [self.slow_networks.get(name, Line()) for name in edge]
        share = min(line.bandwidth / load[name] for line, name in zip(ends, edge, strict=True))
        waits = max(line.latency for line in ends) * link.latency * (1 + (max(load[name] for name in edge) - 1) / 2)
        return Measured(
            ok=True,
            gbps=GBPS * self._noisy(min(share, link.bandwidth)),
            latency_s=LATENCY_S * self._noisy(waits),
        )

    def _noisy(self, value: float) -> float:
        return value * max(0.5, self._noise.gauss(1, NOISE))


def draw(seed: int, smallest: int = 2, largest: int = 4096) -> Cluster:
    """Draw a random cluster. Its size is log-uniform."""
    chance = Random(seed)
    size = min(largest, int(smallest * ((largest + 1) / smallest) ** chance.random()))
    names = tuple(f"node-{number}" for number in range(size))
    cluster = Cluster(seed, names)
    free = list(names)
    chance.shuffle(free)
    cluster.faults = {name: chance.choice(list(Fault)) for name in _some(chance, free, size)}
    for name in _some(chance, free, size // 2 if size >= 20 else size):
        what = chance.choice(list(OWN_RATES))
        margin = getattr(CheckPolicy().margins, what.value)
        cluster.slow_own[name] = what, chance.uniform(0.05, 0.14 if size < 8 else 0.6 / margin)
    for name in _some(chance, free, size // 2 if size >= 20 else size):
        cluster.slow_networks[name] = _slow_line(chance, 0.1, 0.4)
    for edge in _links(chance, names, _count(chance, size)):
        kind = chance.choice(("down", "slow", "flickers"))
        if kind == "down":
            cluster.down.add(edge)
        elif kind == "flickers":
            cluster.flickering.add(edge)
        elif not cluster.slow_networks.keys() & edge:
            cluster.slow_links[edge] = _slow_line(chance, 0.03, 0.12)
    cluster.stumbling = set(_some(chance, free, size // 5))
    cluster.versions = dict.fromkeys(_some(chance, list(names), size // 5), "2.12")
    cluster.clocks_s = {name: chance.choice((-30.0, 5.0, 90.0)) for name in _some(chance, list(names), size // 5)}
    return cluster


def _count(chance: Random, size: int) -> int:
    """Draw a count up to a tenth of `size`; below ten, none or one."""
    return chance.randint(0, 1) if size < 10 else chance.randint(0, size // 10)


def _some(chance: Random, free: list[str], size: int) -> list[str]:
    """Remove and return some of the free names."""
    number = min(len(free), _count(chance, size) if size else 0)
    taken = free[:number]
    del free[:number]
    return taken


def _slow_line(chance: Random, least: float, most: float) -> Line:
    if chance.random() < 0.7:
        return Line(bandwidth=chance.uniform(least, most))
    return Line(latency=chance.uniform(20, 60))


def _links(chance: Random, names: tuple[str, ...], number: int) -> Iterable[Edge]:
    """Yield links without a common end, half of them between partners of the first round."""
    used: set[int] = set()
    for _ in range(number):
        one = chance.randrange(len(names))
        other = one ^ 1 if chance.random() < 0.5 else chance.randrange(len(names))
        if one != other and other < len(names) and used.isdisjoint((one, other)):
            used |= {one, other}
            yield names[min(one, other)], names[max(one, other)]
