"""Comparison of each node's own measurements with those of the others.

Rules:

1. A node is as fast as the best rate that it has shown.
2. A slow node is beyond the margin from the median in two checks. It is also beyond a number of median absolute
   deviations of the others. The deviations do not matter if it is `FAR` times beyond the margin: however much the
   others differ, it is slower than all of them may be. Of two nodes, the faster one is the reference, and only the
   margin counts.
3. A newcomer is also compared with the measurements of the running world (`Baseline`).
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from taskd.core.nodecheck.evidence import CheckPolicy
from taskd.wire.checks import Own

FAR: Final = 1.5


class What(Enum):
    """Part of a node that can be slow."""

    COMPUTE = "compute"
    MEMORY = "memory"
    LOOPBACK = "loopback"
    DISK = "disk"
    NETWORK = "network"


@dataclass(frozen=True, slots=True)
class Baseline:
    """Measurements of the running world by a check, as the reference for newcomers. 0.0: not known."""

    own: Mapping[str, Own] = field(default_factory=dict)
    gbps: float = 0.0
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Slowness:
    """A slow part of a node. `text` gives the figures, as a sentence without its subject."""

    what: What
    text: str


@dataclass(frozen=True, slots=True)
class _SpeedCheck:
    what: What
    field: str
    verb: str
    unit: str


_KINDS: Final = (
    _SpeedCheck(What.COMPUTE, "compute_tflops", "computes", "TFLOP/s"),
    _SpeedCheck(What.MEMORY, "memory_gbps", "copies memory at", "GB/s"),
    _SpeedCheck(What.LOOPBACK, "loopback_gbps", "sends to itself", "GB/s"),
    _SpeedCheck(What.DISK, "disk_mbps", "writes to its disk", "MB/s"),
)


class OwnRates:
    """Best rates of each node so far."""

    def __init__(self, policy: CheckPolicy, baseline: Baseline, judged: Collection[str]) -> None:
        self._policy, self._judged = policy, frozenset(judged)
        self._best: dict[_SpeedCheck, dict[str, float]] = {kind: {} for kind in _KINDS}
        self.take({name: own for name, own in baseline.own.items() if name not in self._judged})

    def take(self, results: Mapping[str, Own]) -> None:
        """Record the nodes' own results."""
        for kind, best in self._best.items():
            for name, own in results.items():
                rate: float = getattr(own, kind.field)
                if rate > best.get(name, 0.0):
                    best[name] = rate

    def slow(self) -> dict[str, list[Slowness]]:
        """Return the slow parts of each node, however often they were measured."""
        slow: dict[str, list[Slowness]] = defaultdict(list)
        for kind, best in self._best.items():
            margin: float = getattr(self._policy.margins, kind.what.value)
            low, others = _outliers(best, margin, self._policy.deviations)
            for name in low:
                if name in self._judged:
                    text = f"{kind.verb} {compared(best[name], others, kind.unit, margin)}"
                    slow[name].append(Slowness(kind.what, text))
        return slow


def compared(value: float, others: float, unit: str, margin: float) -> str:
    """Describe a rate in comparison with the median of the others."""
    ratio = f"{others / value:.1f} times slower, {margin:g} are allowed"
    return f"{value:.3g} {unit}, the others {others:.3g} in the median: {ratio}"


def median(values: Iterable[float]) -> float:
    """Return the median; of an even number of values, the mean of the middle two."""
    return _middle(sorted(values))


def median_of_others(values: Iterable[float]) -> float:
    """Return the median of the values without one low value. It is the same whichever low value is left out."""
    return _middle(sorted(values)[1:])


def _middle(ordered: list[float]) -> float:
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _outliers(values: Mapping[str, float], margin: float, deviations: float) -> tuple[list[str], float]:
    """Return the nodes that are too slow, and the median that one of them is compared with: of all but the lowest."""
    if len(values) < 2:
        return [], 0.0
    ordered = sorted(values.values())
    centre = ordered[1] if len(ordered) == 2 else _middle(ordered)
    low = [name for name, value in values.items() if value * margin < centre]
    others = _middle(ordered[1:])
    if low:
        beyond = deviations * median(abs(value - others) for value in ordered[1:])
        low = [name for name in low if others - values[name] > beyond or values[name] * margin * FAR < others]
    return low, others
