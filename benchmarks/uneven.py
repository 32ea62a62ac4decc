"""False alarms of taskd in jobs with uneven steps.

    python -m benchmarks.soak --uneven --virtual --json
    python -m benchmarks.soak --uneven --minutes 30 --json

Method. The jobs have the steps that `schedule.py` generates. The first step is 30 times as long, and now and then a
step is 10 times as long. An evaluation comes every 50 steps, a checkpoint every 100. None of this is announced.

*Virtual*: half an hour for steps of 10 ms, 100 ms and 1 s, with each of `--seeds` seeds, in virtual time. Two parts of
taskd are played. The first is the rhythm of a job alone: it gets each commit, and is queried as late as possible, just
before the next one. The second is the manager's watch: it gets heartbeats of two nodes, four times a second and out of
step, as in a job. A suspicion that only a query to the ranks would withdraw counts as an alarm too.

*Real*: `scripts/uneven.py` with 4 ranks under taskd, with everything switched on, for `--minutes` minutes. taskd
detects an evaluation by the model's eval mode. Rank 0 alone writes checkpoints. A slow step is slow on one rank. Every
diagnosis in the journal counts as an alarm, of any kind, and so does every recovery.

The last line has the counts. The exit status is 1 with any alarm.
"""

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.job import (
    ROOT,
    START_LIMIT_S,
    BenchmarkError,
    Journal,
    StepLogs,
    measured,
    say,
    started,
    taskd_environment,
    torchrun,
)
from benchmarks.schedule import steps
from taskd.core.diagnosis.rhythm import JobRhythm
from taskd.core.diagnosis.watch import Watch
from taskd.wire.kinds import NodeRank
from taskd.wire.messages import Progress

SCRIPT: Final = ROOT / "benchmarks" / "scripts" / "uneven.py"
LENGTHS_S: Final = (0.01, 0.1, 1.0)
VIRTUAL_S: Final = 1800.0
HEARTBEAT_S: Final = 0.25
RANKS: Final = 4


def commits(seed: int, step_s: float, until_s: float, seen: Counter[str]) -> Iterator[tuple[int, float]]:
    """Yield each step with the time of its commit, until `until_s`. Count the steps and gaps in `seen`."""
    now_s = away_s = 0.0
    for step in steps(seed):
        now_s += away_s + step.work * step_s
        if now_s > until_s:
            return
        seen["steps"] += 1
        seen["slow steps"] += step.slow
        seen["evaluations"] += step.evaluation > 0
        seen["checkpoints"] += step.checkpoint > 0
        away_s = (step.evaluation + step.checkpoint) * step_s
        yield step.number, now_s


def rhythm_alarms(seed: int, step_s: float, seen: Counter[str]) -> list[str]:
    """Return the alarms of the rhythm alone."""
    rhythm, alarms = JobRhythm(), []
    rhythm.begin(0.0)
    for step, now_s in commits(seed, step_s, VIRTUAL_S, seen):
        hang = rhythm.hang(now_s)
        if hang is not None:
            alarms.append(f"rhythm, seed {seed}, steps of {step_s:g} s, step {step}: {hang.reason}")
        for rank in range(RANKS):
            rhythm.commit(NodeRank(rank), step, now_s)
    return alarms


def watch_alarms(seed: int, step_s: float, seen: Counter[str]) -> list[str]:
    """Return the alarms of the manager's watch."""
    watch, alarms = Watch(), dict[int, str]()
    watch.begin(0.0)
    coming = commits(seed, step_s, VIRTUAL_S, seen)
    step, at_s = -1, 0.0
    ahead = next(coming, None)
    for beat in range(int(VIRTUAL_S / HEARTBEAT_S) * 2):
        now_s = (beat + 1) * HEARTBEAT_S / 2
        while ahead is not None and ahead[1] <= now_s:
            step, at_s = ahead
            ahead = next(coming, None)
        if ahead is None:
            break
        hang = watch.question(now_s)  # as the manager does at a deadline, before the report that is on its way
        if hang is not None and not hang.early:
            alarms[hang.step] = f"watch, seed {seed}, steps of {step_s:g} s, step {step}: {hang.reason}"
        watch.progress(NodeRank(beat % 2), Progress(step=step, age_s=now_s - at_s), now_s)
    return [*alarms.values()]


def virtual(_directory: Path, args: argparse.Namespace) -> None:
    """Play all step lengths and seeds, in virtual time."""
    seen: Counter[str] = Counter()
    alarms: list[str] = []
    begun_s = time.monotonic()
    for step_s in LENGTHS_S:
        before = len(alarms)
        for seed in range(args.seed, args.seed + args.seeds):
            alarms += rhythm_alarms(seed, step_s, seen)
            alarms += watch_alarms(seed, step_s, Counter())
        found = len(alarms) - before
        entry = {"step_s": step_s, "seeds": args.seeds, "alarms": found}
        say(args.json, entry, f"steps of {step_s:g} s, {args.seeds} seeds: {found} alarms")
    counted = {name.replace(" ", "_"): count for name, count in seen.items()}
    hours = len(LENGTHS_S) * args.seeds * VIRTUAL_S / 3600
    _tell(args, {"mode": "virtual", "hours": hours, **counted}, alarms, time.monotonic() - begun_s)


def real(directory: Path, args: argparse.Namespace) -> None:
    """Run a job under taskd; count its diagnoses and recoveries."""
    logs, run_dir = StepLogs(directory / "steps", args.ranks), directory / "run"
    words = [SCRIPT, "--record", logs.directory, "--step-ms", args.step_ms, "--seed", args.seed]
    journal = Journal(run_dir)
    env = {**taskd_environment(run_dir), "PYTHONPATH": str(ROOT)}
    with started(torchrun([*words], args.ranks), env, directory / "job.log") as job:
        job.await_until(lambda: logs.all_at(1), "the first step", START_LIMIT_S)
        begun_s, told = time.monotonic(), 0
        while time.monotonic() - begun_s < args.minutes * 60:
            if job.ended:
                raise BenchmarkError(f"the job has ended, see {job.log}")
            for diagnosis in journal.all("diagnosis")[told:]:
                told += 1
                say(args.json, diagnosis, f"after {time.monotonic() - begun_s:.0f} s: {diagnosis['sentence']}")
            time.sleep(1)
        lasted_s = time.monotonic() - begun_s
        alarms = [str(diagnosis["sentence"]) for diagnosis in journal.all("diagnosis")]  # before we end the job
        alarms += [f"a recovery: {record['reason']}" for record in journal.all("recovered")]
        last = min(max(logs.steps(rank, logs.starts(rank)[-1])) for rank in range(args.ranks))
    seen: Counter[str] = Counter()
    for number, _ in commits(args.seed, 1.0, float("inf"), seen):
        if number >= last:
            break
    counted = {name.replace(" ", "_"): count for name, count in seen.items()}
    _tell(args, {"mode": "real", "minutes": round(lasted_s / 60, 2), **counted}, alarms, lasted_s)


def _tell(args: argparse.Namespace, result: dict[str, Any], alarms: list[str], took_s: float) -> None:
    result |= {"alarms": len(alarms), "which": alarms[:20], "took_s": round(took_s, 1)}
    say(args.json, result, "\n".join(f"{name}: {value}" for name, value in result.items()))
    if alarms:
        raise BenchmarkError(f"{len(alarms)} false alarms, the first: {alarms[0]}")


def soak_uneven(args: argparse.Namespace) -> int:
    """Run the virtual jobs or the real one; return 1 with any alarm."""
    return measured(partial(virtual if args.virtual else real, args=args))
