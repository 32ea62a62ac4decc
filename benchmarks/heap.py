"""Recovery time of processes that hold many Python objects, compared with processes that do not.

    python -m benchmarks.heap --json
    python -m benchmarks.heap --pairs 1 --kills 2 --json

Method. `scripts/train.py` runs with 4 ranks under taskd. Each rank makes 5 million Python objects in its set-up
(`--objects`). They are lists, which the garbage collector tracks. In one job the ranks keep them, in the other they
drop them again before the training. Both jobs run in turn, `--pairs` times. Once a warm process waits, a random rank
gets SIGKILL, `--kills` times in each job. The time runs from the kill to the last rank's commit of the first step of
the new world. The time in which the new process makes its objects is subtracted: it belongs to the script.

The rest must not depend on the objects. In a process that does it, a scan of the heap (`gc.get_objects`) takes 0.1 s
for a million objects. A collection (`gc.collect`) takes as long.

The last line has the medians. `ratio` is `with_heap_s` over `without_s`, and `ratio_interval` its 95 % interval. Single
recoveries vary by a quarter. A quick run has few of them, so its verdict uses the interval's lower end.
"""

import argparse
import random
import statistics
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.intervals import ratio_interval
from benchmarks.job import fresh, measured, say
from benchmarks.recovery import measure_taskd

OBJECTS = 5_000_000


def measure(directory: Path, args: argparse.Namespace, chance: random.Random, *, keep: bool) -> list[float]:
    """Kill ranks of one job, whose processes keep their objects or not; return the seconds of each recovery."""
    words = ("--objects", args.objects, *([] if keep else ["--drop"]))
    return [fault.recovery_s for fault in measure_taskd(directory, args, chance, args.kills, more=words)]


def compare(directory: Path, args: argparse.Namespace, chance: random.Random) -> None:
    """Measure without and with the objects `--pairs` times; print each pair, and the medians in the last line."""
    without: list[float] = []
    within: list[float] = []
    for pair in range(args.pairs):
        without += measure(fresh(directory, f"without-{pair}"), args, chance, keep=False)
        within += measure(fresh(directory, f"with-{pair}"), args, chance, keep=True)
        newest = {"without_s": rounded(without[-args.kills :]), "with_heap_s": rounded(within[-args.kills :])}
        say(args.json, {"pair": pair, **newest}, f"pair {pair}: {newest}")
    without_s, with_heap_s = statistics.median(without), statistics.median(within)
    result = {
        "ratio": round(with_heap_s / without_s, 2),
        "ratio_interval": [round(end, 2) for end in ratio_interval(within, without)],
        "with_heap_s": round(with_heap_s, 4),
        "without_s": round(without_s, 4),
        "objects": args.objects,
        "pairs": args.pairs,
        "with_heap_all_s": rounded(within),
        "without_all_s": rounded(without),
    }
    say(
        args.json,
        result,
        f"medians: {with_heap_s:.3f} s with {args.objects} objects in each rank, {without_s:.3f} s without: "
        f"{result['ratio']} times as long",
    )


def rounded(seconds: Sequence[float]) -> list[float]:
    """Return these times, rounded to a tenth of a millisecond."""
    return [round(one, 4) for one in seconds]


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=4, help="how often without and with in turn (default 4)")
    parser.add_argument("--kills", type=int, default=4, help="in each job (default 4)")
    parser.add_argument("--objects", type=int, default=OBJECTS, help=f"in each rank (default {OBJECTS})")
    parser.add_argument("--ranks", type=int, default=4, help="(default 4)")
    parser.add_argument("--step-ms", type=float, default=20, help="least duration of a step (default 20)")
    parser.add_argument("--seed", type=int, default=0, help="of victims and moments")
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    args = parser.parse_args(words)
    if args.ranks < 2:
        parser.error(f"found --ranks {args.ranks}, expected at least 2: one of them is killed")
    if min(args.pairs, args.kills, args.objects) < 1:
        parser.error("found a --pairs, --kills or --objects below 1, expected at least 1 of each")
    return args


def main(words: list[str] | None = None) -> int:
    """Measure; return 1 if the event to measure did not happen."""
    args = arguments(words)
    return measured(partial(compare, args=args, chance=random.Random(args.seed)))


if __name__ == "__main__":
    sys.exit(main())
