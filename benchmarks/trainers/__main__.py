"""One rank that trains with a library in turns, with taskd and without: started by `benchmarks.overhead --trainer`."""

import argparse
import importlib
import json
import os
import statistics
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.trainers.names import TURNS
from benchmarks.trainers.work import Stopwatch, Turn

Turns = Callable[..., Turn]


def compare(turns: Turns, pairs: int) -> dict[str, Any]:
    """Take turns; return, for each pair, the time that taskd adds to a step's rest, and the times without taskd."""
    found: dict[str, Any] = {"wall": [], "cpu": [], "step_us": [], "rest_us": []}
    for pair in range(pairs):
        taken = {ours: turns(ours=ours) for ours in ((True, False) if pair % 2 else (False, True))}
        for name in ("wall", "cpu"):
            with_it, without = (statistics.median(getattr(taken[ours], f"{name}_us")) for ours in (True, False))
            found[name].append(with_it - without)
        found["step_us"].append(statistics.median(taken[False].step_us))
        found["rest_us"].append(statistics.median(taken[False].wall_us))
    return found


def main() -> None:
    """Run the rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trainer", choices=TURNS)
    parser.add_argument("--go", type=Path, required=True, help="FIFO that holds back the measurement")
    parser.add_argument("--out", type=Path, required=True, help="where the figures are written")
    parser.add_argument("--pairs", type=int, required=True, help="of turns")
    parser.add_argument("--steps", type=int, required=True, help="of a turn")
    parser.add_argument("--step-ms", type=float, required=True, help="length of a step without taskd")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    watch = Stopwatch()
    kind = getattr(importlib.import_module(f"benchmarks.trainers.{args.trainer}"), TURNS[args.trainer])
    turns = kind(watch, str(args.out.parent), args.steps)
    turns(ours=True)
    first = int(os.environ["RANK"]) == 0
    if first:
        args.go.read_bytes()
    rest_us = statistics.median(turns(ours=False).wall_us)
    watch.spin.length_s = max(0.0, args.step_ms / 1e3 - rest_us / 1e6)
    found = compare(turns, args.pairs)
    if first:
        args.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
