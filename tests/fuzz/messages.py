"""Well-typed random messages against live managers and agents.

`python -m tests.fuzz.messages manager|agent COUNT --seed N [--direct]`

Rules:

1. The manager is real, and so are the three agents that it serves. A peer with the job's secret sends it anything, by
   its socket or, with `--direct`, straight to its handler. The agent is real, too; the stand-in for its manager orders
   anything.
2. Failures are tracebacks, loops that have ended, agents without answers, a job that a stranger has changed, and
   memory that grows in the last six tenths of a run.
3. A seed gives the same messages, as far as they do not depend on the other side's answers.
"""

import argparse
import json
import logging
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from tests.fuzz.against_agent import AgentSide
from tests.fuzz.against_manager import ManagerSide
from tests.fuzz.side import Side

PARTS: Final = 10
"""Number of parts. After each one, the other side is checked and the memory measured."""
_STEADY: Final = 4
"""Part from which memory has to be constant."""
MARGIN_MB: Final = 8.0
"""Allowance for the allocator and the largest messages."""


@dataclass
class Report:
    """Result of a run."""

    mode: str
    seed: int
    messages: int = 0
    refused: int = 0
    accepted: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    """Counts of refusals by reason."""
    failures: list[str] = field(default_factory=list)
    rss_mb: list[float] = field(default_factory=list)
    per_s: float = 0.0


class _Tracebacks(logging.Handler):
    """Records that are logged with a traceback, each kind once."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: dict[str, str] = {}

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            trace = logging.Formatter().formatException(record.exc_info)
            where = " ".join(trace.splitlines()[-3:])
            self.found.setdefault(where, f"{record.getMessage()[:300]}\n{trace}")


def rss_mb() -> float:
    """Return the memory of this process, which holds both sides."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def grown(points: list[float]) -> str:
    """Return a defect if memory has grown in the constant part; "" if not."""
    steady = points[_STEADY - 1 :]
    more = max(steady[-2:]) - max(steady[:2])
    return f"memory has grown by {more:.1f} MB in the last six tenths, expected {MARGIN_MB}" if more > MARGIN_MB else ""


def run(make: Callable[[random.Random, Path], Side], mode: str, count: int, seed: int) -> Report:
    """Send so many messages."""
    report, traces, folder = Report(mode, seed), _Tracebacks(), Path(tempfile.mkdtemp(prefix="taskd-"))
    logger = logging.getLogger("taskd")
    logger.addHandler(traces)
    side = make(random.Random(seed), folder)
    lasted_s = 0.0
    try:
        for part in range(PARTS):
            began_s = time.monotonic()
            share = count * (part + 1) // PARTS - report.messages
            side.send(share)
            report.messages += share
            lasted_s += time.monotonic() - began_s
            report.failures += side.check()
            report.rss_mb.append(round(rss_mb(), 1))
        report.kinds = dict(side.refused())
    finally:
        side.close()
        logger.removeHandler(traces)
        shutil.rmtree(folder, ignore_errors=True)
    report.failures += traces.found.values()
    report.failures += filter(None, [grown(report.rss_mb)])
    report.refused = sum(report.kinds.values())
    report.accepted = report.messages - report.refused
    report.per_s = round(report.messages / lasted_s, 1)
    return report


def against_manager(count: int, seed: int, *, direct: bool) -> Report:
    """Send messages to a manager with three live agents."""
    mode = "manager, direct" if direct else "manager"
    return run(lambda dice, folder: ManagerSide(dice, folder, direct=direct), mode, count, seed)


def against_agent(count: int, seed: int) -> Report:
    """Send messages to an agent."""
    return run(AgentSide, "agent", count, seed)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("against", choices=("manager", "agent"))
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--direct", action="store_true")
    given = parser.parse_args()
    logging.basicConfig(level=logging.CRITICAL)
    if given.against == "agent":
        report = against_agent(given.count, given.seed)
    else:
        report = against_manager(given.count, given.seed, direct=given.direct)
    print(json.dumps(asdict(report)))
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
