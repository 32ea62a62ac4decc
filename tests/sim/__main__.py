"""Run simulated jobs: `python -m tests.sim --seeds 2000 --json`, or one with its trace: `--seed 7 --trace`.

With `--crowded`, run the jobs of `crowded.py`.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterable

from tests.sim.crowded import crowded
from tests.sim.scenario import Scenario, draw
from tests.sim.world import play


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this seed alone")
    parser.add_argument("--trace", action="store_true", help="print what happens")
    parser.add_argument("--seeds", type=int, default=2000, help="run seeds 0 to N-1")
    parser.add_argument("--first", type=int, default=0, help="begin with this seed")
    parser.add_argument("--crowded", action="store_true", help="jobs to which much happens at once")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    args = parser.parse_args()
    drawn = crowded if args.crowded else draw
    if args.seed is not None:
        return one(drawn(args.seed), trace=args.trace)
    return many(map(drawn, range(args.first, args.first + args.seeds)), as_json=args.json)


def one(scenario: Scenario, *, trace: bool) -> int:
    print(scenario)
    outcome = play(scenario, tracing=trace)
    print("\n".join(outcome.trace))
    print(outcome)
    return 1 if outcome.breach else 0


def many(scenarios: Iterable[Scenario], *, as_json: bool) -> int:
    begun_s = time.monotonic()
    outcomes = [play(scenario) for scenario in scenarios]
    failures = [outcome for outcome in outcomes if outcome.breach]
    for outcome in failures[:20]:
        print(f"seed {outcome.seed}: {outcome.breach[:300]}", file=sys.stderr)
    summary = {
        "seeds": len(outcomes),
        "failures": len(failures),
        "faults": sum(len(outcome.struck) for outcome in outcomes),
        "recoveries": sum(outcome.successes for outcome in outcomes),
        "stopped": sum("exited with status 0" not in outcome.ended for outcome in outcomes),
        "wall_s": round(time.monotonic() - begun_s, 1),
        "virtual_s": round(sum(outcome.virtual_s for outcome in outcomes)),
    }
    print(json.dumps(summary) if as_json else ", ".join(f"{value} {name}" for name, value in summary.items()))
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
