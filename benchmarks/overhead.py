"""Cost of taskd to a job in which nothing fails.

    python -m benchmarks.overhead --json
    python -m benchmarks.overhead --trainer hf --json     (see `trainer_overhead.py`)

- `step_overhead`: additional time of a step of 10 ms with taskd, as a share. A worker of a real job trains with
  everything switched on: agent that follows progress and pace, control thread, black box, clocks, position file. It
  trains in turns of a few steps (`scripts/steps.py`): with taskd's hooks and a commit after each step, then without
  them, then again. A turn counts with the median of its steps, a pair of turns with the quotient of the two. The figure
  is the median of the pairs of all jobs, less 1. One pair means little: on a shared machine they scatter by 3 %.
- `step_overhead_interval`: interval of the median over all jobs, with some 94 % (5 jobs) or 96 % (8), from the order
  statistics of the jobs' medians. Jobs differ by more than their pairs show, since their memory lies differently.
- `step_overhead_cpu`: the same median of the pairs, from the processor time of the training thread. Two jobs side by
  side, one of them under plain torchrun, cannot show an overhead. Two plain jobs differed by 5 to 30 % by mere chance,
  since their memory lies differently.
- `commit_us`: median of `state.commit()` in these turns. The step before has emptied the caches of the processor, as a
  real one does. `commit_standalone_us` is the same in a loop, without an agent (see `commit.py`).
- `checked_commit_us`: additional time of a commit over a job with `TASKD_SELF_CHECK=off`, after the first 80 steps, as
  the difference of the medians. No part of the self-check runs between commits then.
- `constructor_us`: cost of the preloaded gate to a process in which it is inert (see `constructor.py`).
- `background`: processor time of all threads of the rank except the training thread, as a share of one core, from
  /proc; and the same for plain torchrun. `beside` is that of all other processes of the job: torchrun with the manager,
  and warm processes.

`--quick` measures fewer pairs, so the interval is wider.

The work is that of one rank: taskd's addition to a step is local to a rank and does not depend on the number of ranks.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import trainer_overhead
from benchmarks.commit import commit_us
from benchmarks.constructor import constructor_us
from benchmarks.intervals import interval
from benchmarks.job import (
    ROOT,
    Journal,
    measured,
    say,
    started,
    stock_environment,
    taskd_environment,
    torchrun,
)
from benchmarks.trainers.names import LIBRARIES

SCRIPT = ROOT / "benchmarks" / "scripts" / "steps.py"
_FIRST = 80
"""First steps of a job, left out: its self-check inspects something at each of their commits."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_USUAL = {"repeats": 8, "pairs": 500, "steps": 3, "samples": 200}
_QUICK = {"repeats": 4, "pairs": 60, "steps": 3, "samples": 50}
_TRAINER_USUAL = {"repeats": 2, "pairs": 12, "steps": 30, "samples": 0}


def measure_job(
    directory: Path, args: argparse.Namespace, *, taskd: bool, checks: bool = True
) -> tuple[dict[str, list[float]], tuple[float, float]]:
    """Run one job; return its rank's results, and the shares of a core of its other threads and other processes."""
    directory.mkdir()
    go, out = directory / "go", directory / "out.json"
    os.mkfifo(go)
    words: list[object] = ["--go", go, "--out", out, "--first", _FIRST, "--pairs", args.pairs, "--steps", args.steps]
    env = taskd_environment(directory / "run") if taskd else stock_environment()
    env |= {} if checks else {"TASKD_SELF_CHECK": "off"}
    command = torchrun([SCRIPT, *words, *([] if taskd else ["--plain"])], 1)
    with started(command, env, directory / "job.log") as job:
        if taskd:
            journal = Journal(directory / "run")
            job.await_warm(journal)
        go.write_bytes(b"go")  # blocks until the rank reads it
        rank = int(out.with_suffix(".pid").read_text())
        begun_s, used = time.monotonic(), (beside_training_s(rank), beside_rank_s(job.pid, rank))
        last_s, last_used = begun_s, used
        while not job.ended:
            now_s, now_used = time.monotonic(), (beside_training_s(rank), beside_rank_s(job.pid, rank))
            if not out.exists():
                last_s, last_used = now_s, now_used
            time.sleep(0.1)
        job.wait(0)
    found: dict[str, list[float]] = json.loads(out.read_text())
    took_s = max(last_s - begun_s, 1e-3)
    return found, ((last_used[0] - used[0]) / took_s, (last_used[1] - used[1]) / took_s)


def beside_training_s(rank: int) -> float:
    """Return the processor time, in seconds, of all threads of a process but its first, ended ones included."""
    process, thread = _stat(f"/proc/{rank}/stat"), _stat(f"/proc/{rank}/task/{rank}/stat")
    return (_used(process[11:13]) - _used(thread[11:13])) / _TICKS_PER_S


def beside_rank_s(root: int, rank: int) -> float:
    """Return the processor time, in seconds, of a process and its descendants, except the rank."""
    return sum(_used(_stat(f"/proc/{pid}/stat")[11:15]) for pid in _tree(root) if pid != rank) / _TICKS_PER_S


def _used(ticks: list[str]) -> int:
    return sum(map(int, ticks))


def _tree(root: int) -> list[int]:
    """Return a process and its descendants."""
    children: dict[int, list[int]] = {}
    for directory in Path("/proc").glob("[0-9]*"):
        fields = _stat(f"{directory}/stat")
        if fields:
            children.setdefault(int(fields[1]), []).append(int(directory.name))
    found, todo = [], [root]
    while todo:
        found.append(todo.pop())
        todo += children.get(found[-1], [])
    return found


def _stat(path: str) -> list[str]:
    """Return the fields from the state on; none if the process has gone."""
    try:
        return Path(path).read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def measure(directory: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Measure all figures; return the last line."""
    pooled: dict[str, list[float]] = {}
    shares: list[tuple[float, float]] = []
    of_jobs: list[float] = []
    for repeat in range(args.repeats):
        figures, share = measure_job(directory / f"taskd-{repeat}", args, taskd=True)
        for name, values in figures.items():
            pooled.setdefault(name, []).extend(values)
        shares.append(share)
        of_jobs.append(statistics.median(figures["wall"]))
        entry = {name: round(statistics.median(values), 5) for name, values in figures.items()}
        entry.update(background=round(share[0], 5), beside=round(share[1], 5))
        say(args.json, {"repeat": repeat, **entry}, f"repeat {repeat}: {entry}")
    unchecked: list[float] = []
    for repeat in range((args.repeats + 1) // 2):
        found, _ = measure_job(directory / f"unchecked-{repeat}", args, taskd=True, checks=False)
        unchecked += found["commit_us"]
    _, plain = measure_job(directory / "plain", args, taskd=False)
    median = {name: statistics.median(values) for name, values in pooled.items()}
    return {
        "commit_us": round(median["commit_us"], 2),
        "checked_commit_us": round(median["commit_us"] - statistics.median(unchecked), 2),
        "step_overhead": round(median["wall"] - 1, 5),
        "step_overhead_interval": [round(bound - 1, 5) for bound in interval(of_jobs)],
        "constructor_us": round(constructor_us(args.samples), 1),
        "step_overhead_cpu": round(median["cpu"] - 1, 5),
        "commit_standalone_us": round(commit_us(), 2),
        "step_ms": round(median["step_us"] / 1000, 2),
        **{
            name: {
                "taskd": round(statistics.median(share[index] for share in shares), 4),
                "torchrun": round(plain[index], 4),
            }
            for index, name in enumerate(("background", "beside"))
        },
        "jobs": args.repeats,
        "pairs": args.pairs * args.repeats,
    }


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", choices=LIBRARIES, help="measure a training with this library instead")
    parser.add_argument("--repeats", type=int, help="jobs (default 8; with a trainer 2)")
    parser.add_argument("--pairs", type=int, help="of turns in a job (default 500; with a trainer 12)")
    parser.add_argument("--steps", type=int, help="of a turn (default 3; with a trainer 30)")
    parser.add_argument("--step-ms", type=float, default=100, help="length of a trainer's step (default 100)")
    parser.add_argument(
        "--limit-s", type=float, default=900, help="a trainer's job that takes longer hangs (default 900)"
    )
    parser.add_argument("--samples", type=int, help="processes for constructor_us (default 200)")
    parser.add_argument("--quick", action="store_true", help="fewer of all: a minute, and a wider interval")
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    args = parser.parse_args(words)
    usual = _TRAINER_USUAL if args.trainer else _QUICK if args.quick else _USUAL
    for name, value in usual.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    return args


def main(words: list[str] | None = None) -> int:
    """Measure; return 1 if the event to measure did not happen."""
    args = arguments(words)

    def told(directory: Path) -> None:
        result = trainer_overhead.measure(directory, args) if args.trainer else measure(directory, args)
        say(args.json, result, "\n".join(f"{name}: {value}" for name, value in result.items()))

    return measured(told)


if __name__ == "__main__":
    sys.exit(main())
