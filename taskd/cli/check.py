"""`taskd check`: test whether this machine, or a job's nodes, compute, copy, send and write correctly, and how fast.

Rules:

1. A rate is measured, but never compared with another machine, because that needs other machines. Anything that goes
   wrong is a failure.
2. The slowest rank counts. All ranks are shown beside it if they differ.
3. Exit codes: 0 healthy; 1 not healthy, with every failure; 2 wrong usage, in one line.
"""

import argparse
import json
import re
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from taskd.adaptors.torchrun.launcher import torchrun_file
from taskd.cli.arguments import OneLineParser, manager_argument
from taskd.cli.complaint import complain
from taskd.config.process import environment
from taskd.config.reading import Source
from taskd.config.rundir import run_dir
from taskd.core.nodecheck.probes import merge_own, merge_trial
from taskd.errors import TaskdError
from taskd.wire.checks import Own, TrialResult
from taskd.wire.kinds import LocalRank
from taskd.wire.probes import ProbeOrder, ProbeResult

_TIMEOUT_S: Final = 30.0
_JOB_TIMEOUT_S: Final = 300.0
_MOST_PROCESSES: Final = 1024
_MOST_SECONDS: Final = 300.0
_INTERRUPTED: Final = 130
_EVEN: Final = 0.97
"""Ratio of the slowest to the fastest rank above which the ranks are not shown one by one."""
_MOST_RANKS_SHOWN: Final = 4
_BETWEEN: Final = re.compile(
    r"; (?=(?:local ranks?|all local ranks|device|versions|compute|memory|loopback|disk)[ \d,]*: )"
)
"""Separator between causes. Each cause is shown on its own line."""
_DEVICES: Final = ("cpu", "cuda", "npu")
_EPILOG: Final = """\
One process for each local rank multiplies matrices with a known answer and copies memory with a known pattern; one of
them sends bytes to itself over TCP, and writes, syncs and reads a file in the run directory. Then the two halves of the
ranks talk to each other as two nodes would (gloo, NCCL or HCCL). Nothing is left behind.

With --manager the nodes of a running job are checked against each other, beside the training: what they show is less
than what they can do, but one that is much slower than the others is seen. Nothing follows from it for the job.

variables:
  TASKD_RUN_DIR       the directory whose disk is tried (default: that of the records)
  GLOO_SOCKET_IFNAME  the interface of the collectives, as in training
  TASKD_SECRET, TASKD_SECRET_FILE, TASKD_JOB_ID   with --manager, as on the job's nodes

exit code: 0 healthy, 1 not healthy (what is wrong is shown), 2 wrong usage
"""


@dataclass(frozen=True)
class LocalCheck:
    """Results of a check of this machine."""

    results: Sequence[ProbeResult]
    own: Own
    trial: TrialResult | None
    elapsed_s: float

    @property
    def healthy(self) -> bool:
        """True if nothing has failed."""
        return self.own.ok and (self.trial is None or self.trial.ok)


def check(arguments: Sequence[str]) -> int:
    """Check this machine, or the nodes of a job, and print the results. Return the exit code."""
    options = _parser().parse_args(list(arguments))
    if options.manager is not None:
        if options.nproc is not None or options.device:
            _parser().error("--manager checks all nodes of a job as they are: leave out --nproc and --device")
        from taskd.cli.check_job import check_job

        return check_job(options.manager, options.seconds or _JOB_TIMEOUT_S, as_json=options.json)
    try:
        torchrun_file()
        found = _check_here(options.nproc, options.device, options.seconds or _TIMEOUT_S)
    except TaskdError as error:
        complain("check", error)
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    if options.json:
        print(json.dumps(_document(found)))
    else:
        _print(found)
    return 0 if found.healthy else 1


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="taskd check",
        description="Check this machine: compute, memory, network to itself, disk, and a collective between its ranks.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--nproc", metavar="N", type=_processes, help="local ranks (default: one for each accelerator; 2 without one)"
    )
    parser.add_argument(
        "--device", choices=_DEVICES, default="", help="what to check (default: the accelerator, if any)"
    )
    parser.add_argument(
        "--seconds",
        metavar="SECONDS",
        type=_seconds,
        help=f"the most that each of two parts takes (default: {_TIMEOUT_S:g}; with --manager all: {_JOB_TIMEOUT_S:g})",
    )
    parser.add_argument(
        "--manager",
        metavar="HOST:PORT",
        type=manager_argument,
        help="check all nodes of the job that this manager leads",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    return parser


def _processes(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= _MOST_PROCESSES):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a whole number from 1 to {_MOST_PROCESSES}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= _MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a number of seconds from 1 to {_MOST_SECONDS:g}")
    return seconds


def _check_here(nproc: int | None, device: str, timeout_s: float) -> LocalCheck:
    from taskd.adaptors.nodecheck.local import check_node, default_nproc, halves, quiet_imports, store_process

    directory = _existing(run_dir(Source(environment())))
    quiet_imports()
    count = nproc or default_nproc(device)
    base = ProbeOrder(own=True, local_world_size=count, run_dir=bytes(directory), timeout_s=timeout_s, device=device)
    start_s = time.monotonic()
    results = check_node([msgspec.structs.replace(base, local_rank=rank) for rank in map(LocalRank, range(count))])
    own, trial = merge_own(results), None
    if count > 1:
        with store_process() as port:
            orders = halves(count, base, port)
            answers = zip(orders, check_node(orders), strict=True)
            trial = merge_trial(
                msgspec.structs.replace(one, local_rank=LocalRank(order.device_index)) for order, one in answers
            )
    assert own is not None, "all were asked"
    return LocalCheck(results, own, trial, time.monotonic() - start_s)


def _existing(directory: Path) -> Path:
    """Return the directory, or its nearest parent that exists."""
    return next(path for path in (directory, *directory.parents) if path.is_dir())


# ---- output


@dataclass(frozen=True)
class _Line:
    """One probe. `rates` has the rate of each rank that had to measure it; 0.0: not measured."""

    name: str
    unit: str
    rates: Sequence[float]
    ok: bool

    @property
    def value(self) -> str:
        """Rate of the slowest rank."""
        return _figure(min(self.rates)) if self.ok else "-"

    @property
    def spread(self) -> str:
        """Rates of all ranks, if they differ. For many ranks: the slowest and the fastest."""
        if not self.ok or min(self.rates) >= _EVEN * max(self.rates):
            return ""
        if len(self.rates) > _MOST_RANKS_SHOWN:
            return f"{_figure(min(self.rates))} to {_figure(max(self.rates))}"
        return ", ".join(map(_figure, self.rates))


def _figure(rate: float) -> str:
    return f"{rate:.3g}" if rate < 100 else f"{rate:.0f}"


def _lines(found: LocalCheck) -> Iterator[_Line]:
    owns = [result.own for result in found.results if result.own is not None]
    first = [owns[0]]
    for name, unit, rates in (
        ("compute", "TFLOP/s", [own.compute_tflops for own in owns]),
        ("memory", "GB/s", [own.memory_gbps for own in owns]),
        ("loopback", "GB/s", [own.loopback_gbps for own in first]),
        ("disk", "MB/s", [own.disk_mbps for own in first]),
    ):
        yield _Line(name, unit, rates, ok=all(rates))
    if found.trial is not None:
        yield _Line("collective", "GB/s", [found.trial.gbps], ok=found.trial.ok)
        yield _Line("latency", "µs", [found.trial.latency_s * 1e6], ok=found.trial.ok)


def _print(found: LocalCheck) -> None:
    from taskd.cli.tables import ALARM, GOOD, HEAD, VICTIM, Listing, block, heading, line, output, page, pairs

    own, trial = found.own, found.trial
    count = len(found.results)
    rows = [
        ((one.name, one.value, one.unit, one.spread, "ok" if one.ok else "FAILED"), "" if one.ok else ALARM)
        for one in _lines(found)
    ]
    parts = [
        line(f"{socket.gethostname()} · {count} local rank{'s' * (count > 1)} · took {found.elapsed_s:.1f} s", HEAD),
        pairs(own.versions.items()),
        line(""),
        Listing(
            ("probe", ">slowest rank", "unit", "each rank", "diagnosis"),
            rows,
            spare=("each rank",),
            wide=("each rank",),
        ),
    ]
    told = [(text, own.ok) for text in _BETWEEN.split(own.cause) if text]
    told += [(f"collective: {trial.cause}", trial.ok)] if trial and trial.cause else []
    failures, notes = [text for text, ok in told if not ok], [text for text, ok in told if ok]
    if failures:
        parts += [heading("What is wrong"), block(failures, ALARM)]
    if notes:
        parts += [heading("What made it slower"), block(notes, VICTIM)]
    parts.append(heading("healthy" if found.healthy else "not healthy", GOOD if found.healthy else ALARM))
    page(output(), parts)


def _document(found: LocalCheck) -> dict[str, object]:
    """Return the results for programs. Rates are those of the slowest rank; `ranks` has each rank's own."""
    names = Own.__struct_fields__
    return {
        "healthy": found.healthy,
        "host": socket.gethostname(),
        "elapsed_s": round(found.elapsed_s, 3),
        "own": {name: getattr(found.own, name) for name in names},
        "trial": found.trial and {name: getattr(found.trial, name) for name in TrialResult.__struct_fields__},
        "ranks": [{name: getattr(result.own, name) for name in names} for result in found.results],
    }
