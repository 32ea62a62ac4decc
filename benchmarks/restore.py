"""How fast a state comes from a peer: `python -m benchmarks.restore --json`.

Method. Two ranks over gloo on this machine; rank 1 gets the state (Adam on plain layers) from rank 0 by the call that a
recovery makes: folding, digests on both sides, the bytes, unfolding. The floor is the link's own: as many bytes by bare
broadcasts of 64 MiB, in the same processes, in turn. Medians of `--times`.

For each size a line, and the last line has all: `share` of the link's speed that the restore has, `gb_s` of the link,
and `extra_mb`, the memory that either rank needs on top at most.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.job import ROOT, fresh, measured, say, started, stock_environment, torchrun

_LIMIT_S = 300


def measure(directory: Path, size_gb: float, times: int) -> dict[str, Any]:
    """One size."""
    words: list[object] = [ROOT / "benchmarks" / "scripts" / "restore.py", directory, size_gb * 1e3, times]
    with started(torchrun(words, 2), stock_environment(), directory / "job.log") as job:
        job.wait(_LIMIT_S)
    ranks = [json.loads((directory / f"rank-{rank}.json").read_text()) for rank in range(2)]
    link_s, restore_s = (max(rank[key] for rank in ranks) for key in ("link_s", "restore_s"))
    return {
        "gb": size_gb,
        "share": round(link_s / restore_s, 3),
        "gb_s": round(size_gb / link_s, 2),
        "restore_s": round(restore_s, 3),
        "extra_mb": max(rank["extra_mb"] for rank in ranks),
    }


def compare(directory: Path, args: argparse.Namespace) -> None:
    """Each size, and all in the last line."""
    results = []
    for size_gb in args.gb:
        results.append(measure(fresh(directory, f"{size_gb}"), size_gb, args.times))
        found = results[-1]
        text = f"{size_gb} GB: {found['share']:.0%} of the link's {found['gb_s']} GB/s, {found['extra_mb']} MB on top"
        say(args.json, found, text)
    keys = ("share", "gb_s", "extra_mb")
    total = {key: {f"{one['gb']:g}": one[key] for one in results} for key in keys}
    say(args.json, total, f"share of the link: {total['share']}")


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, nargs="+", default=[0.1, 1, 4], help="sizes (default 0.1 1 4)")
    parser.add_argument("--times", type=int, default=3, help="how often each, in turn with the link (default 3)")
    parser.add_argument("--json", action="store_true", help="lines of JSON")
    args = parser.parse_args()
    return measured(lambda directory: compare(directory, args))


if __name__ == "__main__":
    sys.exit(main())
