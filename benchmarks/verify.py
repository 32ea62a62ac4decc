"""What comparing the states of replicas costs the training: `python -m benchmarks.verify --json`.

Method. The job of `benchmarks.backup`, without copies: 2 ranks, Adam, a state of `--mib` a rank, steps of `--step-ms`
that mostly sleep, as if a device worked. It is run with a digest of the whole state in every `--every`-th step
(`TrainState(verify="replicas", every=1)`) and without any in turn, `--pairs` times. The floor is the job without.

The last line has `overhead` (mean step with digests over mean step without, less one), `stall_ms` (what the main thread
read or waited for each digest: in the commit and before the optimizer) and `mib` (bytes that are digested).
"""

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.backup import SETTLED, mean_step_s, run
from benchmarks.job import fresh, measured, say


def compare(directory: Path, args: argparse.Namespace) -> None:
    """`--pairs` times with and without digests; prints each, and the means in the last line."""
    verified: list[dict[str, Any]] = []
    without: list[dict[str, Any]] = []
    for pair in range(args.pairs):
        for every in (args.every, 0) if pair % 2 else (0, args.every):
            ranks = run(fresh(directory, f"{pair}-{every}"), args, 0, every)
            (verified if every else without).extend(ranks)
            step_ms = mean_step_s(ranks) * 1e3
            entry = {"pair": pair, "every": every, "step_ms": round(step_ms, 3)}
            say(args.json, entry, f"pair {pair}, every={every}: {step_ms:.2f} ms a step")
    digests = (args.steps + SETTLED) // args.every
    result = {
        "overhead": round(mean_step_s(verified) / mean_step_s(without) - 1, 4),
        "stall_ms": round(statistics.mean(rank["verify_stall_s"] for rank in verified) * 1e3 / digests, 3),
        "mib": args.mib,
        "every": args.every,
        "step_ms": args.step_ms,
        "pairs": args.pairs,
    }
    text = f"{args.mib} MiB digested every {args.every} steps: {result['overhead']:.2%} slower, {result['stall_ms']} ms"
    say(args.json, result, f"{text} of the main thread for each")


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3, help="how often with and without in turn (default 3)")
    parser.add_argument("--every", type=int, default=1, help="steps from one digest to the next (default 1)")
    parser.add_argument("--steps", type=int, default=100, help="that count, of each job (default 100)")
    parser.add_argument("--step-ms", type=int, default=100, help="length of a step (default 100)")
    parser.add_argument("--mib", type=int, default=64, help="state of a rank (default 64)")
    parser.add_argument("--json", action="store_true", help="lines of JSON")
    args = parser.parse_args()
    return measured(lambda directory: compare(directory, args))


if __name__ == "__main__":
    sys.exit(main())
