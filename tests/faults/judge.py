"""The expected result of a fault, and the deviations from it in journal, exit status and the ranks' results.

Rules:

1. The last diagnosis of the fault counts. Its time is that of the first event with the final kind and culprits.
2. A diagnosis before the fault, or of another fault than the injected one, is a false alarm.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from taskd.core.diagnosis.findings import PACES

Event = Mapping[str, Any]
CRASH_S = 0.5
HANG_S = 2.0
HANG_STEPS = 3

SLOW: Final = frozenset(kind.name for kind in PACES)


@dataclass(frozen=True)
class Expected:
    """Expected result of a scenario.

    Attributes:
        kinds: names of `taskd.core.diagnosis.findings.Kind`, any of them.
        culprits: any of these.
        limit_s: time from the fault to its diagnosis.
        recovers: the job interrupts its training and goes on; else it only reports.
        replaced: ranks that must have other processes then.
        facts: kinds that must be reported besides.
        proven: the diagnosis is acted upon at once.
    """

    kinds: tuple[str, ...]
    culprits: tuple[tuple[int, ...], ...]
    limit_s: float
    recovers: bool
    replaced: tuple[int, ...] = ()
    facts: tuple[str, ...] = ()
    proven: bool = True


@dataclass(frozen=True)
class Seen:
    """Result of a scenario.

    Attributes:
        struck_s: times of the first and the last of the faults.
        status: the job's exit status; None if it has not ended.
        outcome: results of the ranks.
    """

    events: Sequence[Event]
    struck_s: tuple[float, float] | None
    status: int | None
    outcome: Mapping[int, Mapping[str, Any]]

    def named(self, name: str) -> list[Event]:
        """Return the events of one name."""
        return [event for event in self.events if event["event"] == name]

    @property
    def diagnoses(self) -> list[Event]:
        """Diagnoses of the first fault reported after the injection. A slow rank counts apart, unless injected."""
        after = [event for event in self.named("diagnosis") if self._follows(event)]
        first = next((event for event in after if event["kind"] not in SLOW), after[0] if after else None)
        return [event for event in after if first is not None and event["fault"] == first["fault"]]

    def _follows(self, event: Event) -> bool:
        return self.struck_s is not None and event["monotonic_s"] >= self.struck_s[0]

    @property
    def decisive(self) -> Event | None:
        """First event with the final kind and culprits."""
        found: Event | None = None
        for event in self.diagnoses:
            if found is None or _told(event) != _told(found):
                found = event
        return found

    @property
    def diagnosis_s(self) -> float | None:
        """Time from the fault to its diagnosis, from the last fault if there were several."""
        decisive = self.decisive
        if decisive is None or self.struck_s is None:
            return None
        return float(decisive["monotonic_s"]) - self.struck_s[1]

    @property
    def false_alarms(self) -> list[Event]:
        """Diagnoses before the fault, or of another one."""
        known = self.diagnoses
        return [event for event in self.named("diagnosis") if event not in known]

    @property
    def recoveries(self) -> list[Event]:
        """Recoveries after the fault."""
        return [event for event in self.named("recovered") if self._follows(event)]


def _told(event: Event) -> tuple[str, tuple[int, ...]]:
    return event["kind"], tuple(event["culprits"])


def judge(expected: Expected, seen: Seen, steps: int, ranks: int) -> list[str]:
    """Return the deviations from the expected result; an empty list if there are none."""
    if seen.struck_s is None:
        return ["the fault itself did not come"]
    wrong = [*_judge_diagnosis(expected, seen), *_judge_course(expected, seen)]
    wrong += [f"false alarm: {event['sentence']}" for event in seen.false_alarms]
    if seen.status != 0:
        wrong.append("the job has not ended" if seen.status is None else f"the job ended with {seen.status}")
    done = {rank: left["step"] for rank, left in seen.outcome.items()}
    if done != dict.fromkeys(range(ranks), steps):
        wrong.append(f"steps done in the end by rank: {done}, expected {steps} by all {ranks}")
    if len({left["weights"] for left in seen.outcome.values()}) > 1:
        wrong.append("the ranks' weights differ in the end")
    return wrong


def _judge_diagnosis(expected: Expected, seen: Seen) -> list[str]:
    event, took_s = seen.decisive, seen.diagnosis_s
    if event is None or took_s is None:
        return ["no diagnosis"]
    wrong = []
    kind, culprits = _told(event)
    if kind not in expected.kinds:
        wrong.append(f"kind {kind}, expected {' or '.join(expected.kinds)}")
    if culprits not in expected.culprits:
        wrong.append(f"culprits {list(culprits)}, expected {' or '.join(str(list(one)) for one in expected.culprits)}")
    if event["proven"] != expected.proven:
        wrong.append(f"proven {event['proven']}, expected {expected.proven}: {event['proof']}")
    if took_s > expected.limit_s:
        wrong.append(f"diagnosis after {took_s:.3f} s, expected {expected.limit_s:.3f} s at most")
    missing = set(expected.facts) - {fact["kind"] for fact in seen.diagnoses[-1]["facts"]}
    if missing:
        wrong.append(f"not told besides: {', '.join(sorted(missing))}")
    return wrong


def _judge_course(expected: Expected, seen: Seen) -> list[str]:
    if not expected.recovers:
        return [f"{len(seen.recoveries)} recoveries, where nothing had to be done"] if seen.recoveries else []
    if not seen.recoveries:
        return ["no recovery"]
    wrong = [f"a second recovery: {event['reason']}" for event in seen.recoveries[1:]]
    left = set(expected.replaced) - {int(rank) for rank in seen.recoveries[0]["replaced"]}
    return [*wrong, f"ranks {sorted(left)} have kept their processes"] if left else wrong
