"""Recovery time after the kill of a rank in a job's first seconds.

    python -m benchmarks.firstkill --json
    python -m benchmarks.firstkill --after 1 --json
    python -m benchmarks.firstkill --starts 3 --json

Method. `scripts/train.py` runs with 4 ranks by `torchrun --standalone` under taskd, in a job of its own for each kill.
Beside it, a process keeps one core busy from before torchrun's start (`--busy` sets the number). A rank gets SIGKILL
`--after` seconds after the first step that all ranks have committed. The time runs from the kill to the last rank's
commit of the first step of the world that the killed rank came back to. The line of a kill has its seconds and taskd's
own phases. The last line has the seconds of all kills, the worst of them, and whether all new processes were warm.

`--starts` measures instead the cost of this readiness to a job's start: the time from torchrun's start to the first
step committed by all ranks. Stock torchrun and taskd run in turn, `--starts` times each.
"""

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.job import (
    START_LIMIT_S,
    Job,
    Journal,
    StepLogs,
    fresh,
    measured,
    say,
    started,
    stock_environment,
    taskd_environment,
    torchrun,
    training,
)

RECOVERY_LIMIT_S = 60
BUSY = "while True: pass"


@contextmanager
def busy_cores(count: int) -> Iterator[None]:
    """Keep `count` cores busy within a block."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def first_commit_s(logs: StepLogs, ranks: int) -> float:
    """Return the time of the last rank's commit of the job's first step."""
    return max(logs.steps(rank, logs.starts(rank)[0])[1] for rank in range(ranks))


def await_first_commit(job: Job, logs: StepLogs, ranks: int) -> float:
    """Wait until all ranks have committed the first step; return the time of the last commit."""
    job.await_until(lambda: logs.all_at(1), "the first step", START_LIMIT_S)
    return first_commit_s(logs, ranks)


def kill_after(directory: Path, after_s: float, args: argparse.Namespace, chance: random.Random) -> dict[str, Any]:
    """Kill a rank of a new job `after_s` seconds after its first step; return the figures."""
    logs = StepLogs(directory / "steps", args.ranks)
    journal = Journal(directory / "run")
    victim = chance.randrange(args.ranks)
    env = taskd_environment(directory / "run")
    with started(torchrun(training(logs, args.step_ms), args.ranks), env, directory / "job.log") as job:
        begun_s = await_first_commit(job, logs, args.ranks)
        time.sleep(max(0.0, begun_s + after_s - time.monotonic()))
        dead, killed_s = logs.starts(victim)[-1], time.monotonic()
        os.kill(dead, signal.SIGKILL)
        job.await_until(
            lambda: logs.resumed_s(victim, dead, killed_s) is not None, "a step of all ranks", RECOVERY_LIMIT_S
        )
        job.await_until(lambda: journal.count("recovered") > 0, "the journal's record", 10)
        resumed_s = logs.resumed_s(victim, dead, killed_s) or 0.0
    record = journal.last("recovered")
    return {
        "after_s": after_s,
        "seconds": round(resumed_s - killed_s, 3),
        "warm": bool(record["warm"].get(str(victim))),
        "restart": record["restart"],
        "phases_ms": record["phases_ms"],
    }


def kill_early(directory: Path, args: argparse.Namespace) -> None:
    """Run one job for each kill; print each, and the summary in the last line."""
    chance = random.Random(args.seed)
    found = []
    for number, after_s in enumerate(args.after):
        with busy_cores(args.busy):
            found.append(kill_after(fresh(directory, f"job-{number}"), after_s, args, chance))
        say(args.json, found[-1], f"killed after {after_s:g} s: {found[-1]}")
    seconds = {f"{entry['after_s']:g}": entry["seconds"] for entry in found}
    result = {
        "worst_s": max(seconds.values()),
        "seconds": seconds,
        "warm": all(entry["warm"] for entry in found),
        "restarts": sum(entry["restart"] for entry in found),
        "busy_cores": args.busy,
    }
    say(args.json, result, f"worst {result['worst_s']} s of {seconds}")


def start_s(directory: Path, args: argparse.Namespace, *, taskd: bool) -> float:
    """Return the seconds from torchrun's start to the first step of all ranks."""
    logs = StepLogs(directory / "steps", args.ranks)
    env = taskd_environment(directory / "run") if taskd else stock_environment()
    with busy_cores(args.busy):
        begun_s = time.monotonic()
        with started(torchrun(training(logs, args.step_ms), args.ranks), env, directory / "job.log") as job:
            return await_first_commit(job, logs, args.ranks) - begun_s


def compare_starts(directory: Path, args: argparse.Namespace) -> None:
    """Start jobs under stock torchrun and under taskd in turn; print each run, and the medians in the last line."""
    found: dict[str, list[float]] = {"stock": [], "taskd": []}
    for run in range(args.starts):
        for kind, times in found.items():
            times.append(round(start_s(fresh(directory, f"{kind}-{run}"), args, taskd=kind == "taskd"), 3))
        entry = {"run": run, **{f"{kind}_s": times[-1] for kind, times in found.items()}}
        say(args.json, entry, f"{entry}")
    stock_s, taskd_s = (statistics.median(times) for times in found.values())
    result = {
        "ratio": round(taskd_s / stock_s, 3),
        "taskd_start_s": round(taskd_s, 3),
        "stock_start_s": round(stock_s, 3),
        "all_s": found,
        "busy_cores": args.busy,
    }
    say(args.json, result, f"to the first step: stock {stock_s:.2f} s, taskd {taskd_s:.2f} s")


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--after", type=float, nargs="+", default=[1, 3, 8, 15], help="seconds after the first step (default 1 3 8 15)"
    )
    parser.add_argument("--starts", type=int, help="compare so many starts with stock torchrun's instead")
    parser.add_argument("--busy", type=int, default=1, help="processes that keep a core busy (default 1)")
    parser.add_argument("--ranks", type=int, default=4, help="(default 4)")
    parser.add_argument("--step-ms", type=float, default=20, help="least duration of a step (default 20)")
    parser.add_argument("--seed", type=int, default=0, help="of the victims")
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    args = parser.parse_args(words)
    if args.ranks < 2:
        parser.error(f"found --ranks {args.ranks}, expected at least 2: one of them is killed")
    return args


def main(words: list[str] | None = None) -> int:
    """Measure; return 1 if the event to measure did not happen."""
    args = arguments(words)
    return measured(partial(compare_starts if args.starts else kill_early, args=args))


if __name__ == "__main__":
    sys.exit(main())
