"""Quality of the straggler detection: recall, delay and false alarms over traces with ground truth.

    python -m tests.data.judge [--share 1.0] [--json]

Rules:

1. A straggler counts as found when its cause and exactly its ranks are reported, within 20 steps of its onset.
2. Any other report in any trace is a false alarm: another cause, another rank, anything before the onset.
3. All traces count in `recall`. Jobs whose data loader is visible are counted apart from the others. `within reach`
   holds the traces whose noise before the onset lets 10 % be detected in 20 steps (`Stragglers.steps_needed`). In the
   others, stragglers are found later.
"""

import argparse
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

from taskd.core.stragglers.detector import SlowCause, Straggler, Stragglers
from tests.data.synthetic import Case, Family, Fault, rows

WITHIN_STEPS = 20
KNOWN = (Family.FIXED, Family.PACKED, Family.PADDED, Family.MIXED)
"""Families in which the data loader shows the amount of a rank's work."""
CAUSES = {
    Fault.RANK: SlowCause.COMPUTE,
    Fault.NODE: SlowCause.NODE,
    Fault.DATA: SlowCause.DATA,
    Fault.LINK: SlowCause.LINK,
    Fault.STAGES: SlowCause.IMBALANCE,
    Fault.HEAVY: SlowCause.WORKLOAD,
}
EXCESSES = (0.1, 0.15, 0.3, 1.0)
AFTER_STEPS = 100


@dataclass(frozen=True)
class Outcome:
    """Reports on one trace. `delay`: steps until it was found, None if it was not; `reach`: steps that 10 % need."""

    case: Case
    delay: int | None
    false: tuple[str, ...]
    reach: float

    @property
    def in_time(self) -> bool:
        return self.delay is not None and self.delay <= WITHIN_STEPS


def played(case: Case) -> Outcome:
    """Follow one trace until the straggler is found, or to its end."""
    detector = Stragglers(case.layout)
    false: list[str] = []
    reach = float("inf")
    for row in rows(case):
        step = row[0].step
        if step == case.onset:
            reach = detector.steps_needed()
        for told in detector.note(row):
            if _right(case, told, step):
                return Outcome(case, step - case.onset + 1, tuple(false), reach)
            false.append(f"step {step}: {told.cause.name} {told.ranks} {told.excess:.3f}")
    return Outcome(case, None, tuple(false), reach)


def _right(case: Case, told: Straggler, step: int) -> bool:
    return step >= case.onset and told.cause is CAUSES.get(case.fault) and told.ranks == case.victims


def slow(share: float) -> Iterator[Case]:
    """Yield jobs with ranks that become slow at some step."""
    many = max(1, round(100 * share))
    for family, ranks, excess in product(Family, (4, 16, 64), EXCESSES):
        for seed in range(many if ranks < 64 else max(1, many // 4)):
            onset = AFTER_STEPS + seed * 37 % 100
            yield Case(family, ranks, onset + AFTER_STEPS, seed, Fault.RANK, excess, onset)


def by_noise(share: float) -> Iterator[Case]:
    """Yield jobs with a rank that is 10 % slower, at noise of 1 to 5 %."""
    for noise, ranks, seed in product((0.01, 0.02, 0.03, 0.04, 0.05), (4, 16), range(max(1, round(100 * share)))):
        onset = AFTER_STEPS + seed * 37 % 100
        yield Case(Family.FIXED, ranks, onset + AFTER_STEPS, seed, Fault.RANK, 0.1, onset, noise=noise)


def other(share: float) -> Iterator[Case]:
    """Yield jobs with a slow part other than a single rank's computing."""
    many = max(1, round(20 * share))
    families = (Family.FIXED, Family.PACKED, Family.PADDED, Family.MIXED)
    for family, fault, ranks, seed in product(families, (Fault.NODE, Fault.DATA, Fault.LINK), (16, 64), range(many)):
        onset = AFTER_STEPS + seed * 37 % 100
        yield Case(family, ranks, onset + AFTER_STEPS, 5000 + seed, fault, 0.2, onset)


def lasting(share: float) -> Iterator[Case]:
    """Yield jobs with a lasting imbalance that is no rank's fault. It is reported some time, without blame."""
    many = max(1, round(20 * share))
    for family, ranks, seed in product((Family.FIXED, Family.PACKED, Family.MIXED), (16, 64), range(many)):
        yield Case(family, ranks, 400, 6000 + seed, Fault.STAGES, 0.2)
    for ranks, seed in product((4, 16), range(many)):
        yield Case(Family.MIXED, ranks, 3000, 7000 + seed, Fault.HEAVY, 0.3, 0)


def healthy(share: float) -> Iterator[Case]:
    """Yield jobs in which nothing is slow."""
    for family, (ranks, many) in product(Family, ((2, 10), (4, 20), (16, 10), (64, 4), (128, 1))):
        for seed in range(max(1, round(many * share))):
            yield Case(family, ranks, max(200, round(5000 * min(1.0, 4 * share))), 9000 + seed)


def recall(outcomes: Iterable[Outcome]) -> dict[str, float | int | None]:
    """Return how many of these traces were found in time, and the delays of the others."""
    known = list(outcomes)
    reached = [one for one in known if one.reach <= WITHIN_STEPS]
    delays = sorted(one.delay if one.delay is not None else AFTER_STEPS for one in known)
    return {
        "traces": len(known),
        "recall": _share(known),
        "within reach": len(reached),
        "recall within reach": _share(reached),
        "median delay, steps": delays[len(delays) // 2] if delays else None,
        "wrong": sum(len(one.false) for one in known),
    }


def _share(outcomes: list[Outcome]) -> float | None:
    return round(sum(one.in_time for one in outcomes) / len(outcomes), 4) if outcomes else None


def report(share: float) -> dict[str, object]:
    """Judge all traces, and return the figures."""
    found = [played(case) for case in slow(share)]
    noisy = [played(case) for case in by_noise(share)]
    others = [played(case) for case in other(share)]
    always = [played(case) for case in lasting(share)]
    quiet = [played(case) for case in healthy(share)]
    watched = sum(one.case.steps for one in quiet)
    alarms = [f"{one.case.family.name} {one.case.ranks} ranks, {text}" for one in quiet for text in one.false]
    kinds = sorted({one.case.fault.value for one in others})
    return {
        "slow ranks": recall(one for one in found if one.case.family in KNOWN),
        "slow ranks, sizes not known": recall(one for one in found if one.case.family not in KNOWN),
        "by family and excess": {
            f"{family.name} {excess:.0%}": recall(
                one for one in found if (one.case.family, one.case.excess) == (family, excess)
            )
            for family, excess in product(Family, EXCESSES)
        },
        "10 % by noise": {
            f"{noise:.0%}, {ranks} ranks": recall(
                one for one in noisy if (one.case.noise, one.case.ranks) == (noise, ranks)
            )
            for noise, ranks in sorted({(one.case.noise, one.case.ranks) for one in noisy})
        },
        "other causes": {
            f"{family.name} {kind}": recall(
                one for one in others if (one.case.family, one.case.fault.value) == (family, kind)
            )
            for family, kind in product((Family.FIXED, Family.PACKED, Family.PADDED, Family.MIXED), kinds)
        },
        "always so, nobody's fault": {
            fault.value: {
                "traces": sum(one.case.fault is fault for one in always),
                "told": sum(one.case.fault is fault and one.delay is not None for one in always),
                "wrong": [text for one in always if one.case.fault is fault for text in one.false],
            }
            for fault in (Fault.STAGES, Fault.HEAVY)
        },
        "healthy": {
            "steps": watched,
            "false alarms": len(alarms),
            "per 10,000 steps": round(1e4 * len(alarms) / watched, 3),
            "which": alarms,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0, help="of the traces: 1 takes some minutes")
    parser.add_argument("--json", action="store_true", help="one line")
    chosen = parser.parse_args()
    print(json.dumps(report(chosen.share), indent=None if chosen.json else 1))


if __name__ == "__main__":
    main()
