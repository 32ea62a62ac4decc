"""Cost of state copies to the training: `python -m benchmarks.backup --json`.

Method. `scripts/backup.py` trains plain layers with Adam on 2 ranks of one node. The state of a rank has `--mib`, and
all of its memory changes in every step. A step lasts `--step-ms` and mostly sleeps, as if a device worked. The job runs
with a copy in every step (`backup_every=1`) and without copies in turn, `--pairs` times. The floor is the job without
copies. `--default` uses the default interval instead: one rank copies the state, as often as that costs at most 2 % of
the time.

The last line has these figures. The network is not in them: with several nodes it is used beside the training too.

- `overhead`: mean step with copies over mean step without, less one.
- `stall_ms`: wait of the main thread in a step, in the commit and before the optimizer.
- `copied`: share of the steps of which all ranks have whole copies.
- `mib`: size of a copy in MiB.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.job import ROOT, fresh, measured, say, started, taskd_environment, torchrun

_RANKS = 2
_LIMIT_S = 300
SETTLED = 10


def run(directory: Path, args: argparse.Namespace, every: int, verify_every: int = 0) -> list[dict[str, Any]]:
    """Run one job; return the results of each rank."""
    words: list[object] = [ROOT / "benchmarks" / "scripts" / "backup.py", directory]
    words += [args.steps + SETTLED, args.step_ms, args.mib, every, verify_every]
    with started(torchrun(words, _RANKS), taskd_environment(directory / "run"), directory / "job.log") as job:
        job.wait(_LIMIT_S)
    return [json.loads((directory / f"rank-{rank}.json").read_text()) for rank in range(_RANKS)]


def in_turn(
    directory: Path, args: argparse.Namespace, name: str, most: int, play: Callable[[Path, int], list[dict[str, Any]]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Run `--pairs` jobs with `name` set to `most`, and as many with 0, in turn. Print each.

    Return the results of the ranks of all jobs with `most`, then of those with 0.
    """
    with_it: list[dict[str, Any]] = []
    without: list[dict[str, Any]] = []
    for pair in range(args.pairs):
        for every in (most, 0) if pair % 2 else (0, most):
            ranks = play(fresh(directory, f"{pair}-{every}"), every)
            (with_it if every else without).extend(ranks)
            step_ms = mean_step_s(ranks) * 1e3
            entry = {"pair": pair, name: every, "step_ms": round(step_ms, 3)}
            say(args.json, entry, f"pair {pair}, {name}={every}: {step_ms:.2f} ms a step")
    return with_it, without


def compare(directory: Path, args: argparse.Namespace) -> None:
    """Run `--pairs` jobs with and without copies; print each, and the means in the last line."""
    most = -1 if args.default else 1
    with_copies, without = in_turn(
        directory, args, "backup_every", most, lambda folder, every: run(folder, args, every)
    )
    steps = args.steps + SETTLED
    result = {
        "overhead": round(mean_step_s(with_copies) / mean_step_s(without) - 1, 4),
        "stall_ms": round(statistics.mean(rank["stall_s"] for rank in with_copies) * 1e3 / steps, 3),
        "copied": round(statistics.mean(rank["whole"] for rank in with_copies) / steps, 3),
        "mib": round(max(rank["size_bytes"] for rank in with_copies) / 2**20, 1),
        "step_ms": args.step_ms,
        "pairs": args.pairs,
    }
    say(
        args.json,
        result,
        f"a copy of {result['mib']} MiB in {result['copied']:.0%} of the steps: {result['overhead']:.2%} slower, "
        f"{result['stall_ms']} ms of waiting a step",
    )


def mean_step_s(ranks: list[dict[str, Any]]) -> float:
    """Return the mean length of a step, over all steps of all ranks, in seconds."""
    return statistics.mean(step_s for rank in ranks for step_s in rank["steps_s"])


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the arguments that both benchmarks of this job share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3, help="how often with and without in turn (default 3)")
    parser.add_argument("--steps", type=int, default=100, help="that count, of each job (default 100)")
    parser.add_argument("--step-ms", type=int, default=100, help="length of a step (default 100)")
    parser.add_argument("--mib", type=int, default=64, help="state of a rank (default 64)")
    parser.add_argument("--json", action="store_true", help="lines of JSON")
    return parser


def main() -> int:
    """Run the benchmark."""
    parser = parser_of(__doc__)
    parser.add_argument("--default", action="store_true", help="copies as they come, not one in each step")
    args = parser.parse_args()
    return measured(lambda directory: compare(directory, args))


if __name__ == "__main__":
    sys.exit(main())
