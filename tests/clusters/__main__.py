"""Play checks on random clusters: `python -m tests.clusters --clusters 10000 --json`; one again: `--seed 4711`."""

import argparse
import json
import sys
import time
from collections import Counter

from tests.clusters.cluster import Cluster, draw
from tests.clusters.judge import Played, play


def main() -> int:
    """Play clusters. Return 0 if every diagnosis was right and no check took more rounds than its bound."""
    parser = argparse.ArgumentParser(prog="python -m tests.clusters", description=__doc__)
    parser.add_argument("--clusters", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="seed of the first cluster")
    parser.add_argument("--largest", type=int, default=4096, metavar="NODES")
    parser.add_argument("--seed", type=int, help="play this cluster alone, and tell its diagnosis")
    parser.add_argument("--json", action="store_true", help="one object, and nothing else")
    args = parser.parse_args()
    if args.seed is not None:
        return tell(play(draw(args.seed, largest=args.largest)))
    begun_s = time.monotonic()
    totals = Totals()
    for seed in range(args.first, args.first + args.clusters):
        totals.add(play(draw(seed, largest=args.largest)))
    report = totals.report() | {"plan_ms_4096": planned_ms(), "elapsed_s": round(time.monotonic() - begun_s, 1)}
    if args.json:
        print(json.dumps(report))
    else:
        for name, value in report.items():
            print(f"{name}: {value}")
    return 1 if report["wrong"] else 0


class Totals:
    """Sums over clusters."""

    def __init__(self) -> None:
        self.clusters = self.nodes = self.longest = 0
        self.told: Counter[str] = Counter()
        self.untold: Counter[str] = Counter()
        self.rounds: Counter[int] = Counter()
        self.spare: Counter[int] = Counter()
        self.wrong: list[str] = []

    def add(self, played: Played) -> None:
        """Add one cluster."""
        self.clusters += 1
        self.nodes += len(played.cluster.names)
        self.told += played.told
        self.untold += played.untold
        self.rounds[len(played.rounds)] += 1
        self.spare[played.bound - len(played.rounds)] += 1
        self.wrong += [f"seed {played.cluster.seed}: {text}" for text in played.wrong]

    def report(self) -> dict[str, object]:
        """Return the object that `--json` prints."""
        faulty = sum(
            number for counts in (self.told, self.untold) for what, number in counts.items() if "faulty" in what
        )
        return {
            "clusters": self.clusters,
            "nodes": self.nodes,
            "faulty": faulty + sum("not found: faulty" in text for text in self.wrong),
            "found": sum(number for what, number in self.told.items() if "faulty" in what),
            "wrong": len(self.wrong),
            "told": dict(sorted(self.told.items())),
            "cannot_be_told": dict(sorted(self.untold.items())),
            "rounds": dict(sorted(self.rounds.items())),
            "rounds_below_bound": dict(sorted(self.spare.items())),
            "examples_of_wrong": self.wrong[:20],
        }


def planned_ms() -> dict[str, float]:
    """Return the longest CPU time to plan a round, in 5 healthy checks of 4,096 nodes and in 5 with faults."""
    names = tuple(f"node-{number}" for number in range(4096))
    well = max(play(Cluster(seed, names)).plan_s for seed in range(5))
    faulty = max(play(draw(seed, smallest=4096)).plan_s for seed in range(5))
    return {"healthy": round(1000 * well, 1), "faulty": round(1000 * faulty, 1)}


def tell(played: Played) -> int:
    """Print one cluster in words. Return the exit status."""
    cluster, diagnosis = played.cluster, played.diagnosis
    print(f"{len(cluster.names)} nodes, {len(played.rounds)} rounds, bound {played.bound}")
    for round_ in played.rounds[1:]:
        print(f"round {round_.number}: {round_.edges[:40]}, own {round_.own[:40]}")
    for what in ("faults", "down", "flickering", "slow_links", "slow_own", "slow_networks", "stumbling"):
        print(f"truth, {what}: {getattr(cluster, what)}")
    for name, found in diagnosis.nodes.items():
        if found.text:
            print(f"{found.health.value}: {name} {found.text}")
    for text in (*(f"{link.health.value}: {link.text}" for link in diagnosis.links), *diagnosis.notes):
        print(text)
    print("\n".join(["WRONG:", *played.wrong]) if played.wrong else "all as it should be")
    return 1 if played.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
