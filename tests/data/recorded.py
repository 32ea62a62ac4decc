"""Traces of real jobs: two ranks, DDP over gloo, two cores; made by `python -m tests.data.make --recorded`.

A file has a line for each step and rank: rank, step, own, waited and data time in microseconds, work.
"""

import gzip
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from taskd.core.stragglers.detector import Step
from taskd.wire.kinds import JobRank

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Trace:
    """A job. From `onset` on, rank 1 computes 1 + `slow` times as long, or waits `load` times a step for its data."""

    name: str
    steps: int
    vary: bool = False
    slow: float = 0.0
    load: float = 0.0
    onset: int = 0
    ranks: int = 2


RECORDED = (
    Trace("healthy", 800),
    Trace("healthy-lengths", 800, vary=True),
    Trace("slow", 600, slow=0.5, onset=300),
    Trace("slow-lengths", 600, vary=True, slow=0.5, onset=300),
    Trace("slow-loader", 600, load=0.5, onset=300),
)


def write(rows: Iterable[list[Step]], path: Path) -> int:
    """Write a trace. Return its size in bytes."""
    lines = [
        f"{one.rank},{one.step},{one.own_s * 1e6:.0f},{one.waited_s * 1e6:.0f},{one.data_s * 1e6:.0f},{one.work:.0f}\n"
        for row in rows
        for one in row
    ]
    path.write_bytes(gzip.compress("".join(lines).encode(), mtime=0))
    return path.stat().st_size


def read(trace: Trace) -> Iterator[list[Step]]:
    """Yield the steps of a trace, all ranks of each."""
    lines = gzip.decompress((HERE / f"{trace.name}.csv.gz").read_bytes()).decode().split()
    steps = (line.split(",") for line in lines)
    for _, row in groupby(steps, key=lambda one: int(one[1])):
        yield [
            Step(JobRank(int(rank)), int(step), int(own) / 1e6, int(waited) / 1e6, int(data) / 1e6, float(work))
            for rank, step, own, waited, data, work in row
        ]
