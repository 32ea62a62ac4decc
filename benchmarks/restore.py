"""Speed of a state's transfer from a peer: `python -m benchmarks.restore --json`.

Method. Two ranks use gloo on this machine. Rank 1 gets the state (Adam on plain layers) from rank 0 by the call that a
recovery makes: folding, digests on both sides, the bytes, unfolding. The floor is the link's own speed: as many bytes
by bare broadcasts of 64 MiB, in the same processes, in turn.

Each size has a line, and the last line has all sizes:

- `share`: speed of the restore as a share of the link's. It is the median of the turns' quotients, so neighbours that
  slow down both count for little.
- `gb_s`: speed of the link, from the median time.
- `extra_mb`: most additional memory that either rank needs.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.job import ROOT, fresh, measured, say, started, stock_environment, torchrun

_LIMIT_S = 300
_GB = (0.1, 1, 4)
_QUICK_GB = (0.1, 1)
_TIMES, _TIMES_OF_SMALL, _SMALL_GB = 3, 15, 0.5


def measure(directory: Path, size_gb: float, times: int) -> dict[str, Any]:
    """Restore a state of one size `times` times; return the figures."""
    words: list[object] = [ROOT / "benchmarks" / "scripts" / "restore.py", directory, size_gb * 1e3, times]
    with started(torchrun(words, 2), stock_environment(), directory / "job.log") as job:
        job.wait(_LIMIT_S)
    ranks = [json.loads((directory / f"rank-{rank}.json").read_text()) for rank in range(2)]
    links_s, restores_s = (
        [max(turn) for turn in zip(*(rank[key] for rank in ranks), strict=True)] for key in ("link_s", "restore_s")
    )
    link_s, restore_s = statistics.median(links_s), statistics.median(restores_s)
    shares = [link / restore for link, restore in zip(links_s, restores_s, strict=True)]
    return {
        "gb": size_gb,
        "share": round(statistics.median(shares), 3),
        "gb_s": round(size_gb / link_s, 2),
        "restore_s": round(restore_s, 3),
        "extra_mb": max(rank["extra_mb"] for rank in ranks),
    }


def compare(directory: Path, args: argparse.Namespace) -> None:
    """Measure each size; print each, and all in the last line."""
    results = []
    for size_gb in args.gb or (_QUICK_GB if args.quick else _GB):
        times = args.times or (_TIMES_OF_SMALL if size_gb < _SMALL_GB else _TIMES)
        results.append(measure(fresh(directory, f"{size_gb}"), size_gb, times))
        found = results[-1]
        text = f"{size_gb} GB: {found['share']:.0%} of the link's {found['gb_s']} GB/s, {found['extra_mb']} MB on top"
        say(args.json, found, text)
    keys = ("share", "gb_s", "extra_mb")
    total = {key: {f"{one['gb']:g}": one[key] for one in results} for key in keys}
    say(args.json, total, f"share of the link: {total['share']}")


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, nargs="+", help="sizes (default 0.1 1 4)")
    parser.add_argument("--times", type=int, help="how often each, in turn with the link (default 3; 15 below 0.5 GB)")
    parser.add_argument("--quick", action="store_true", help="0.1 and 1 GB only")
    parser.add_argument("--json", action="store_true", help="lines of JSON")
    args = parser.parse_args()
    return measured(lambda directory: compare(directory, args))


if __name__ == "__main__":
    sys.exit(main())
