"""Cost of taskd to a step of a training with a popular library: `benchmarks.overhead --trainer NAME`.

A real job of two ranks trains in turns with taskd and without, in one process for each rank (`trainers/`). The models
of the turns are alike. A model that taskd must leave alone has a trainer, an engine or an accelerator of its own. The
forward pass includes a fixed processor time, in which memory is gone through. It is chosen so that a step takes
`--step-ms` without taskd. The rest of the step is compared: the work of the library and of taskd.

- `step_overhead`: additional processor time of the training thread with taskd, as a share of the step. It is the median
  of the pairs of turns of all jobs. `step_overhead_interval` is its 95 % interval. `added_us` is the same in
  microseconds.
- `wall_overhead`: the same by the wall clock. Two ranks that wait for each other, on a machine with as many cores, make
  it uncertain: see its interval.
- `holds_from_ms`: least length of a step at which the processor's share is at most 0.3 %.
- `rest_us`: time that the library itself takes beside the fixed time.

The floor is the library without taskd, in the same process and in turns. Ray is not measured here: a step under Ray is
that of the loop in the actor, as `overhead` measures it without `--trainer`.
"""

import argparse
import json
import os
import statistics
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from benchmarks.intervals import interval
from benchmarks.job import (
    ROOT,
    BenchmarkError,
    Journal,
    say,
    started,
    taskd_environment,
    torchrun,
)
from benchmarks.trainers.names import LIBRARIES

AIM: Final = 0.003
_RANKS: Final = 2


def measure(directory: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Measure all figures; return the last line. Raise `BenchmarkError` if the library is not installed."""
    library = LIBRARIES[args.trainer]
    if find_spec(library.partition(".")[0]) is None:
        raise BenchmarkError(
            f"found no {library} in this environment; install what all trainers need with 'bash scripts/trainers.sh "
            f"--help', then run .venv-trainers/bin/python -m benchmarks.overhead --trainer {args.trainer}"
        )
    pooled: dict[str, list[float]] = {}
    for repeat in range(args.repeats):
        for name, values in _measure_job(directory / f"{args.trainer}-{repeat}", args).items():
            pooled.setdefault(name, []).extend(values)
        entry = {name: round(statistics.median(values), 1) for name, values in pooled.items()}
        say(args.json, {"repeat": repeat, **entry}, f"repeat {repeat}: {entry}")
    return _figures(pooled, args)


def _figures(pooled: dict[str, list[float]], args: argparse.Namespace) -> dict[str, Any]:
    step_us = statistics.median(pooled["step_us"])
    added_us = statistics.median(pooled["cpu"])
    return {
        "trainer": args.trainer,
        "step_overhead": round(added_us / step_us, 5),
        "step_overhead_interval": [round(bound / step_us, 5) for bound in interval(pooled["cpu"])],
        "added_us": round(added_us, 1),
        "holds_from_ms": round(added_us / AIM / 1000, 1),
        "wall_overhead": round(statistics.median(pooled["wall"]) / step_us, 5),
        "wall_overhead_interval": [round(bound / step_us, 5) for bound in interval(pooled["wall"])],
        "step_ms": round(step_us / 1000, 2),
        "rest_us": round(statistics.median(pooled["rest_us"])),
        "ranks": _RANKS,
        "jobs": args.repeats,
        "pairs": len(pooled["cpu"]),
        "steps_of_a_turn": args.steps,
    }


def _measure_job(directory: Path, args: argparse.Namespace) -> dict[str, list[float]]:
    directory.mkdir()
    go, out = directory / "go", directory / "out.json"
    os.mkfifo(go)
    words: list[object] = ["-m", "benchmarks.trainers", args.trainer, "--go", go, "--out", out, "--pairs", args.pairs]
    words += ["--steps", args.steps, "--step-ms", args.step_ms]
    command = torchrun(words, _RANKS)
    with started(command, taskd_environment(directory / "run"), directory / "job.log", cwd=ROOT) as job:
        journal = Journal(directory / "run")
        job.await_warm(journal)
        go.write_bytes(b"go")
        job.wait(args.limit_s)
    found: dict[str, list[float]] = json.loads(out.read_text())
    return found
