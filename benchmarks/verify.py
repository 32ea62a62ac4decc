"""Cost to the training of comparing the states of replicas: `python -m benchmarks.verify --json`.

Method. The job is that of `benchmarks.backup`, without copies: 2 ranks, Adam, a state of `--mib` a rank, and steps of
`--step-ms` that mostly sleep, as if a device worked. It runs with a digest of the whole state in every `--every`-th
step (`TrainState(verify="replicas", every=1)`) and without any in turn, `--pairs` times. The floor is the job without
digests.

The last line has these figures:

- `overhead`: mean step with digests over mean step without, less one.
- `stall_ms`: the main thread's time per digest for reading and waiting, in the commit and before the optimizer.
- `mib`: size of the digested state in MiB.
"""

import argparse
import statistics
import sys
from pathlib import Path

from benchmarks.backup import SETTLED, in_turn, mean_step_s, parser_of, run
from benchmarks.job import measured, say


def compare(directory: Path, args: argparse.Namespace) -> None:
    """Run `--pairs` jobs with and without digests; print each, and the means in the last line."""
    verified, without = in_turn(directory, args, "every", args.every, lambda folder, every: run(folder, args, 0, every))
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
    parser = parser_of(__doc__)
    parser.add_argument("--every", type=int, default=1, help="steps from one digest to the next (default 1)")
    args = parser.parse_args()
    return measured(lambda directory: compare(directory, args))


if __name__ == "__main__":
    sys.exit(main())
