"""What a node has measured of itself, beside the others.

Rules:

1. A node is as fast as the best that it has shown.
2. It is slow if it is beyond the margin from the median in two checks, and beyond so many median absolute deviations
   of the others, too, unless it is `FAR` times beyond the margin: however much the others differ, it is slower than all
   of them may be. Of two nodes the faster one is the measure, and only the margin counts.
3. A newcomer is compared with what was measured of the running world, too (`Baseline`).
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
    """What of a node can be slow."""

    COMPUTE = "compute"
    MEMORY = "memory"
    LOOPBACK = "loopback"
    DISK = "disk"
    NETWORK = "network"


@dataclass(frozen=True, slots=True)
class Baseline:
    """What a check of the running world has measured, for newcomers to be compared with. 0.0: not known."""

    own: Mapping[str, Own] = field(default_factory=dict)
    gbps: float = 0.0
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Slowness:
    """What is slow of a node, and the sentence that says how much, without its subject."""

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
    """The best of each node so far."""

    def __init__(self, policy: CheckPolicy, baseline: Baseline, judged: Collection[str]) -> None:
        self._policy, self._judged = policy, frozenset(judged)
        self._best: dict[_SpeedCheck, dict[str, float]] = {kind: {} for kind in _KINDS}
        self.take({name: own for name, own in baseline.own.items() if name not in self._judged})

    def take(self, results: Mapping[str, Own]) -> None:
        """What nodes have found of themselves."""
        for kind, best in self._best.items():
            for name, own in results.items():
                rate: float = getattr(own, kind.field)
                if rate > best.get(name, 0.0):
                    best[name] = rate

    def slow(self) -> dict[str, list[Slowness]]:
        """What is slow, however often it was measured."""
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
    """A rate beside that of the others."""
    ratio = f"{others / value:.1f} times slower, {margin:g} are allowed"
    return f"{value:.3g} {unit}, the others {others:.3g} in the median: {ratio}"


def median(values: Iterable[float]) -> float:
    """Of an even number the mean of the middle two."""
    return _middle(sorted(values))


def median_of_others(values: Iterable[float]) -> float:
    """The median without one that is low: without the first of the list it is the same."""
    return _middle(sorted(values)[1:])


def _middle(ordered: list[float]) -> float:
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _outliers(values: Mapping[str, float], margin: float, deviations: float) -> tuple[list[str], float]:
    """Those that are too slow, and the median of the others beside one of them."""
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
