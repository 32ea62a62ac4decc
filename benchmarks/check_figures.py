"""Check of the headline figures: runs their benchmarks, compares the figures with the bars and the stated values.

    bash scripts/figures.sh --quick --json

Method. For each headline command, `figures.json` has a quick command with fewer pairs. `--quick` runs the quick
commands, `--all` runs all commands of the file. Without an option the full headline commands run. They run one at a
time, since each needs the machine for itself. Before each command, the share of the cores that other processes use is
measured. If it was above 10 %, the largest share is reported.

A figure is **broken** if it is on the wrong side of its bar. It is **worse** if, on the same kind of machine, it is
worse than its stated value by more than its recorded spread. Of an interval, the end closest to the good side counts.
The **pace** is the factor by which stock torchrun's restart takes longer on this machine than stated, between 1 and 2.
Bars and stated values of `paced` figures are multiplied by it: a slower machine needs more time for the same work.

Exit status 1: a figure is broken or worse, or a command has failed. `--record` writes the new values into
`figures.json` and the pages. Stated values come from full commands, so `--record` excludes `--quick`.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.figures import FILE, Better, Figure, FigureError, Run, ends, read_runs, write_runs
from benchmarks.record import commit, last_line, machine, today, write_pages

_WINDOW_S: Final = 2.0
_QUIET_SHARE: Final = 0.1
"""Share of the cores that other processes may take while the machine counts as quiet."""
PACE: Final = "recovery_stock_s"
"""Figure that gives the pace: it measures nothing of taskd."""
_SLOWEST: Final = 2.0


class Verdict(Enum):
    """Result of comparing one figure."""

    OK = "ok"
    BROKEN = "broken"
    WORSE = "worse"
    UNJUDGED = "-"


@dataclass(frozen=True)
class Comparison:
    """One figure: as stated, as measured now, and the verdict."""

    stated: Figure
    now: Figure
    verdict: Verdict


def judge(stated: Figure, now: Figure, *, same_machine: bool, pace: float = 1.0) -> Verdict:
    """Compare a measured figure with its bar, then with its stated value."""
    if stated.better is None:
        return Verdict.UNJUDGED
    pace = pace if stated.paced else 1.0
    best = min if stated.better is Better.LOWER else max
    worst = max if stated.better is Better.LOWER else min
    sign = 1 if stated.better is Better.LOWER else -1
    found = best(ends(now.value))
    if stated.bar is not None and sign * (found - stated.bar * pace) > 0:
        return Verdict.BROKEN
    if same_machine and stated.spread is not None:
        return Verdict.WORSE if sign * (found - pace * worst(ends(stated.value))) > pace * stated.spread else Verdict.OK
    return Verdict.OK if stated.bar is not None else Verdict.UNJUDGED


def pace_of(pairs: Iterable[tuple[Figure, Figure]]) -> float:
    """Return how much slower this machine is than the stated one, from 1 to 2, by stated and measured figures."""
    found = [min(ends(now.value)) / max(ends(stated.value)) for stated, now in pairs if stated.name == PACE]
    return min(max([1.0, *found]), _SLOWEST)


def compare(run: Run, result: object, where: str, *, quick: bool, pace: float = 1.0) -> list[Comparison]:
    """Compare all figures of one command. Raise `FigureError` if the result lacks one."""
    wanted = [figure for figure in run.figures if not (quick and figure.full_only)]
    now = [figure.measured(result) for figure in wanted]
    same = run.machine == where
    pairs = list(zip(wanted, now, strict=True))
    pace = max(pace, pace_of(pairs))
    return [Comparison(a, b, judge(a, b, same_machine=same, pace=pace)) for a, b in pairs]


def chosen(runs: list[Run], *, quick: bool, everything: bool) -> Iterator[tuple[Run, str]]:
    """Yield the runs to measure, each with the command to run."""
    for run in runs:
        if quick and run.quick:
            yield run, run.quick
        elif everything or (run.quick and not quick):
            yield run, run.command


def busy_share(window_s: float = _WINDOW_S) -> float:
    """Return the share of all cores that was in use within a window."""

    def ticks() -> tuple[int, int]:
        fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return sum(fields), fields[3] + fields[4]

    total, idle = ticks()
    time.sleep(window_s)  # the window itself
    later, later_idle = ticks()
    return 1 - (later_idle - idle) / max(later - total, 1)


class Check:
    """One pass over the commands, with its results so far."""

    def __init__(self, path: Path, where: str, *, quick: bool, record: bool) -> None:
        self._path = path
        self._where = where
        self._quick = quick
        self._record = record
        self.comparisons: list[Comparison] = []
        self.failed: list[str] = []
        self.busy = 0.0

    def measure(self, run: Run, command: str, measured: Callable[[str], object] = last_line) -> None:
        """Run one command, compare its figures, and record them if asked to."""
        self.busy = max(self.busy, busy_share())
        print(f"figures: {command}", file=sys.stderr)
        try:
            result = measured(command)
            self.comparisons += compare(run, result, self._where, quick=self._quick, pace=self.pace)
            if self._record:
                fresh = run.measured(result, today(), self._where, commit())
                runs = [fresh if one.command == run.command else one for one in read_runs(self._path)]
                write_runs(runs, self._path)
        except FigureError as error:
            print(f"figures: {error}", file=sys.stderr)
            self.failed.append(command)

    def names(self, verdict: Verdict) -> list[str]:
        """Return the figures with this verdict."""
        return [one.stated.name for one in self.comparisons if one.verdict is verdict]

    @property
    def pace(self) -> float:
        """Factor by which this machine is slower than the stated one, by the figures measured so far."""
        return pace_of((one.stated, one.now) for one in self.comparisons)

    @property
    def green(self) -> bool:
        """True if all commands ran, and no figure is broken or worse."""
        return not (self.failed or self.names(Verdict.BROKEN) or self.names(Verdict.WORSE))

    def summary(self, wall_s: float) -> dict[str, object]:
        """Return the last line of `--json`."""
        return {
            "figures": {
                one.stated.name: {
                    "bar": one.stated.bar,
                    "better": one.stated.better.value if one.stated.better else None,
                    "stated": one.stated.value,
                    "spread": one.stated.spread,
                    "now": one.now.value,
                    "verdict": one.verdict.value,
                }
                for one in self.comparisons
            },
            "broken": self.names(Verdict.BROKEN),
            "worse": self.names(Verdict.WORSE),
            "failed": self.failed,
            "quiet": self.busy <= _QUIET_SHARE,
            "machine": self._where,
            "pace": round(self.pace, 2),
            "commit": commit(),
            "wall_s": round(wall_s),
        }

    def table(self) -> Table:
        """Return the table for people."""
        table = Table("figure", "bar", "stated", "now", "", box=None)
        for one in self.comparisons:
            sign = {Better.LOWER: "≤ ", Better.HIGHER: "≥ "}.get(one.stated.better) if one.stated.better else ""
            bar = f"{sign}{one.stated.shown(one.stated.bar)}" if one.stated.bar is not None else "-"
            table.add_row(one.stated.name, bar, one.stated.text, one.now.text, one.verdict.value)
        return table


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--quick", action="store_true", help="the quick commands: 6 minutes at most")
    which.add_argument("--all", action="store_true", help="all commands of figures.json: about an hour, some as root")
    parser.add_argument("--record", action="store_true", help="write what was measured into figures.json and the pages")
    parser.add_argument("--only", action="append", help="only commands that contain this text")
    parser.add_argument("--json", action="store_true", help="print JSON in the last line")
    args = parser.parse_args(words)
    if args.record and args.quick:
        parser.error("found --record with --quick, expected one of them: stated values come from the full commands")
    return args


def main(words: list[str] | None = None) -> int:
    """Measure and compare; return 1 if a figure is broken or worse, or a command has failed."""
    args = arguments(words)
    check = Check(FILE, machine(), quick=args.quick, record=args.record)
    started_s = time.monotonic()
    plan = list(chosen(read_runs(), quick=args.quick, everything=args.all))
    for run, command in plan:
        if not args.only or any(text in command for text in args.only):
            check.measure(run, command)
    wall_s = time.monotonic() - started_s
    wide = max(100, os.get_terminal_size().columns) if sys.stdout.isatty() else 100
    Console(width=wide, file=sys.stderr if args.json else sys.stdout).print(check.table())
    if check.pace > 1:
        print(f"figures: paced bars are multiplied by {check.pace:.2f}: stock torchrun is slower here", file=sys.stderr)
    if check.busy > _QUIET_SHARE:
        print(
            f"figures: other processes took up to {check.busy:.0%} of the cores: not a quiet machine", file=sys.stderr
        )
    if args.json:
        print(json.dumps(check.summary(wall_s)))
    if args.record and write_pages():
        return 1
    return 0 if check.green else 1


if __name__ == "__main__":
    sys.exit(main())
