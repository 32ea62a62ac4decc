"""Cost of taskd to a node while its ranks train and nothing fails.

    python -m benchmarks.idle --json
    python -m benchmarks.idle --windows 1 --window-s 8 --settle-s 2 --json     (a shorter run: 40 s)

Method. `scripts/train.py` runs with 4 ranks and steps of 50 ms by `torchrun --standalone`, under stock torchrun and
under taskd. Once it trains, the processor time of torchrun's threads is read from `schedstat`, and again after
`--window-s`. Under taskd, the first reading waits for a warm process, and gives it `--settle-s` to get ready. The
process holds torchrun itself, and under taskd also the agent and the manager of the job.

- `agent_share`, `stock_share`: this time as a share of one core, the median of `--windows` windows.
- `private_mb`: memory that the template and its standbys share with no other process, all together (`Private_Clean` and
  `Private_Dirty` of `/proc/PID/smaps_rollup`). With `--shared` they share theirs (`TASKD_STANDBY_SHARED=on`).
- `shared_mb`: their share of the pages that they share with others (`Pss` less the private part).
"""

import argparse
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.job import (
    START_LIMIT_S,
    BenchmarkError,
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


def share_of(pid: int, args: argparse.Namespace) -> float:
    """Return the processor time of a process as a share of one core: the median of all windows."""
    shares = []
    for _ in range(args.windows):
        begun_s, used_s = time.monotonic(), _used_s(pid)
        time.sleep(args.window_s)
        shares.append((_used_s(pid) - used_s) / (time.monotonic() - begun_s))
    return statistics.median(shares)


def _used_s(pid: int) -> float:
    """Return the processor time of all threads, to the nanosecond; `/proc/PID/stat` counts in 10 ms."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def memory_mb(pid: int) -> tuple[float, float]:
    """Return the memory that a process has for itself, and its share of the memory that it has with others."""
    lines = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    kib = {words[0].rstrip(":"): int(words[1]) for words in lines}
    private = kib["Private_Clean"] + kib["Private_Dirty"]
    return private / 1024, (kib["Pss"] - private) / 1024


def measure_stock(directory: Path, args: argparse.Namespace) -> float:
    """Return stock torchrun's share of a core."""
    logs = StepLogs(directory / "steps", args.ranks)
    with started(torchrun(training(logs, args.step_ms), args.ranks), stock_environment(), directory / "job.log") as job:
        job.await_training(logs)
        return share_of(job.pid, args)


def measure_taskd(directory: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Return torchrun's share of a core under taskd, and the memory of the warm processes."""
    logs, journal = StepLogs(directory / "steps", args.ranks), Journal(directory / "run")
    env = taskd_environment(directory / "run") | ({"TASKD_STANDBY_SHARED": "on"} if args.shared else {})
    with started(torchrun(training(logs, args.step_ms), args.ranks), env, directory / "job.log") as job:
        job.await_training(logs)
        job.await_until(lambda: journal.warm, "a warm process", START_LIMIT_S)
        time.sleep(args.settle_s)
        share = share_of(job.pid, args)
        memory = [memory_mb(pid) for pid in job.warm_processes(journal)]
    if len(memory) < 2:
        raise BenchmarkError(f"found {len(memory)} warm processes, expected a template and a standby, see {job.log}")
    return {
        "agent_share": round(share, 4),
        "private_mb": round(sum(private for private, _ in memory), 1),
        "private_each_mb": [round(private, 1) for private, _ in memory],
        "shared_mb": round(sum(shared for _, shared in memory), 1),
    }


def compare(directory: Path, args: argparse.Namespace) -> None:
    """Measure stock torchrun, then taskd; print the figures in the last line."""
    stock = measure_stock(fresh(directory, "stock"), args)
    say(args.json, {"stock_share": round(stock, 4)}, f"stock torchrun: {stock:.2%} of a core")
    ours = measure_taskd(fresh(directory, "taskd"), args)
    result = {**ours, "stock_share": round(stock, 4), "ranks": args.ranks, "step_ms": args.step_ms}
    say(args.json, result, "\n".join(f"{name}: {value}" for name, value in result.items()))


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=3, help="(default 3)")
    parser.add_argument("--window-s", type=float, default=10, help="length of a window (default 10)")
    parser.add_argument("--settle-s", type=float, default=5, help="before the first window (default 5)")
    parser.add_argument("--ranks", type=int, default=4, help="(default 4)")
    parser.add_argument("--step-ms", type=float, default=50, help="least duration of a step (default 50)")
    parser.add_argument("--shared", action="store_true", help="warm processes share their memory")
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    """Measure; return 1 if the event to measure did not happen."""
    return measured(partial(compare, args=arguments(words)))


if __name__ == "__main__":
    sys.exit(main())
