"""Large ranks: the gain by the shim when one is killed, and the time to detect and replace a rank that hangs.

    python -m benchmarks.recovery --rss-gib 1 --json

Method. `scripts/train.py` runs under taskd with as many ranks as there are cores (2 to 4, or `--ranks`). Each rank
holds and has touched `--rss-gib` of memory, in small pages. A new process touches its memory from its fifth step on,
since a script's set-up is not measured. Freeing 1 GiB keeps a core busy for 0.1 s, and stops no other process. `share`
shows this cost where ranks have to share cores.

*Killed*: a random rank gets SIGKILL at a random moment. The time runs to the last rank's commit of the first step of
the world that the rank came back to. A pair has one kill with the shim and one without it; there are `--pairs` pairs.
Without the shim, taskd is a copy of the package that lacks its two libraries. It detects the death through a pidfd once
the kernel has taken the process down, and breaks stuck collectives by a fallback in Python. All else is the same.

*Stopped*: a random rank gets SIGSTOP while its black box shows it inside a collective, once the job's rhythm is known
(250 steps). The collectives have torch's default timeout of 30 minutes. `hang_to_diagnosis_s` is the time to the
journal's diagnosis, `diagnosis_to_step_s` the time from there to the first step of all ranks.

The last line has the medians. `share` is the time with the shim as a share of the time without it. `phases_ms` are
taskd's own, from its journal; `detect` is the time from the signal to the manager's detection. `taken_down_ms` is the
kernel's time to free the killed process, by its pidfd.
"""

import argparse
import os
import random
import select
import signal
import statistics
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.job import (
    ROOT,
    START_LIMIT_S,
    BenchmarkError,
    Job,
    Journal,
    StepLogs,
    fresh,
    say,
    shimless_environment,
    started,
    taskd_environment,
    torchrun,
    training,
)
from taskd.core.diagnosis.findings import Kind
from taskd.errors import ShimError
from taskd.runtime.box.blackbox import Box

RHYTHM_STEPS = 250
LARGE_STEPS = 50
READY_S = 1.0
"""Time for a warm process to take its page faults in advance, in seconds."""
LIMIT_S = 120
STOP_TRIES = 10_000


@dataclass(frozen=True)
class Recovery:
    """One fault: seconds to the next step of all ranks, and the phases in which they were spent."""

    rank: int
    total_s: float
    phases_ms: Mapping[str, float]
    taken_down_ms: float = 0.0
    diagnosis_s: float = 0.0
    """Seconds from a hang to its diagnosis."""
    diagnosis: Mapping[str, Any] = field(default_factory=dict)


class PidfdClock:
    """Clock for the end of a process: a thread of its own waits for it."""

    def __init__(self, pid: int) -> None:
        self._pidfd = os.pidfd_open(pid)
        self._thread = threading.Thread(target=self._wait)
        self._gone_s: float | None = None
        self._thread.start()

    def _wait(self) -> None:
        select.select([self._pidfd], [], [], LIMIT_S)
        self._gone_s = time.monotonic()

    def gone_s(self) -> float:
        """Wait for the end of the process; return its time."""
        self._thread.join()
        os.close(self._pidfd)
        assert self._gone_s is not None
        return self._gone_s


@dataclass(frozen=True)
class Running:
    """A job of large ranks that trains, with a warm process in reserve."""

    job: Job
    logs: StepLogs
    journal: Journal

    def resumed_s(self, victim: int, dead: int, since_s: float) -> float:
        """Wait until all ranks have committed a step of the new world and the journal has the recovery.

        Return the time of the last rank's commit.
        """
        logs, what = self.logs, f"a step of all ranks after the loss of rank {victim}"
        self.job.await_until(lambda: logs.resumed_s(victim, dead, since_s) is not None, what, LIMIT_S)
        self.job.await_until(lambda: self.journal.count("recovered") > 0, "the journal's record", 10)
        resumed_s = logs.resumed_s(victim, dead, since_s)
        assert resumed_s is not None
        return resumed_s

    def phases_ms(self, victim: int, since_s: float) -> dict[str, float]:
        """Return the phases of the recovery. Raise `BenchmarkError` unless it was in place, by a warm process."""
        record = self.journal.last("recovered")
        if record["restart"] or not record["warm"].get(str(victim)):
            raise BenchmarkError(f"not recovered in place by a warm process: {record['reason']}, see {self.job.log}")
        return {"detect": round((record["detected_s"] - since_s) * 1e3, 3), **record["phases_ms"]}


@contextmanager
def running(directory: Path, args: argparse.Namespace, *, shim: bool, steps: int) -> Iterator[Running]:
    """Yield a job that has made `steps` steps; after 50 its ranks are large."""
    logs, run_dir = StepLogs(directory / "steps", args.ranks), directory / "run"
    env = taskd_environment(run_dir) if shim else shimless_environment(run_dir, directory)
    command = torchrun(training(logs, args.step_ms, "--rss-gib", args.rss_gib), args.ranks)
    journal = Journal(run_dir)
    with started(command, env, directory / "job.log", ROOT if shim else directory) as job:
        job.await_until(lambda: logs.all_at(steps), f"step {steps}", START_LIMIT_S)
        job.await_warm(journal)
        if shim == ("without a black box" in job.log.read_text()):
            raise BenchmarkError(f"the job has {'no ' * shim}black boxes, expected otherwise, see {job.log}")
        yield Running(job, logs, journal)


def kill(directory: Path, args: argparse.Namespace, chance: random.Random, *, shim: bool) -> Recovery:
    """Kill a rank of a job; return its recovery."""
    with running(directory, args, shim=shim, steps=LARGE_STEPS) as it:
        time.sleep(READY_S + chance.uniform(0, 0.5))  # the random moment of the fault
        victim = chance.randrange(args.ranks)
        dead = it.logs.starts(victim)[-1]
        clock = PidfdClock(dead)
        killed_s = time.monotonic()
        os.kill(dead, signal.SIGKILL)
        gone_s = clock.gone_s()
        resumed_s = it.resumed_s(victim, dead, killed_s)
        phases_ms = it.phases_ms(victim, killed_s)
    return Recovery(victim, resumed_s - killed_s, phases_ms, taken_down_ms=round((gone_s - killed_s) * 1e3, 1))


def stop(directory: Path, args: argparse.Namespace, chance: random.Random) -> Recovery:
    """Stop a rank of a job inside a collective; return its recovery."""
    with running(directory, args, shim=True, steps=RHYTHM_STEPS) as it:
        time.sleep(READY_S + chance.uniform(0, 0.5))
        victim = chance.randrange(args.ranks)
        dead = it.logs.starts(victim)[-1]
        stopped_s = stop_in_collective(it.job, dead)
        it.job.await_until(lambda: bool(diagnoses(it.journal, stopped_s)), "a diagnosis", LIMIT_S)
        diagnosis = diagnoses(it.journal, stopped_s)[0]
        resumed_s = it.resumed_s(victim, dead, diagnosis["monotonic_s"])
        phases_ms = it.phases_ms(victim, stopped_s)
    if diagnosis["kind"] != "STOPPED" or diagnosis["culprits"] != [victim]:
        raise BenchmarkError(
            f"rank {victim} was stopped, and the diagnosis is {diagnosis['kind']}: {diagnosis['sentence']}"
        )
    diagnosis_s = diagnosis["monotonic_s"]
    return Recovery(
        victim, resumed_s - diagnosis_s, phases_ms, diagnosis_s=diagnosis_s - stopped_s, diagnosis=diagnosis
    )


def diagnoses(journal: Journal, since_s: float) -> list[dict[str, Any]]:
    """Return the diagnoses after `since_s` that require a recovery."""
    return [one for one in journal.all("diagnosis") if one["monotonic_s"] > since_s and one["kind"] != Kind.SLOW.name]


def stop_in_collective(job: Job, pid: int) -> float:
    """Stop the process while its box shows an open collective; return the time.

    A stop counts only if the collective is still open after it. Otherwise the process continues and is checked again.
    Raise `BenchmarkError` after `STOP_TRIES` checks.
    """
    box = _box_of(job, pid)
    try:
        for _ in range(STOP_TRIES):
            if box.clocks().open_event is None:
                time.sleep(0.0005)
                continue
            stopped_s = time.monotonic()
            os.kill(pid, signal.SIGSTOP)
            _await_stop(pid)
            if box.clocks().open_event is not None:
                return stopped_s
            os.kill(pid, signal.SIGCONT)
        raise BenchmarkError(f"process {pid} was never met inside a collective")
    finally:
        box.close()


def _box_of(job: Job, pid: int) -> Box:
    for path in Path("/dev/shm").glob(f"taskd-{job.pid}-*/box-*"):
        try:
            box = Box.open(path)
        except ShimError:
            continue
        if box.read().owner_pid == pid:
            return box
        box.close()
    raise BenchmarkError(f"no black box of process {pid} is to be found, see {job.log}")


def _await_stop(pid: int) -> None:
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "Tt":
        time.sleep(0.0002)


def compare_large(directory: Path, args: argparse.Namespace, chance: random.Random) -> None:
    """Kill with the shim, kill without it, and stop, `--pairs` times; print each, and the medians in the last line."""
    ours: list[Recovery] = []
    bare: list[Recovery] = []
    stopped: list[Recovery] = []
    for pair in range(args.pairs):
        ours.append(kill(fresh(directory, f"with-{pair}"), args, chance, shim=True))
        bare.append(kill(fresh(directory, f"without-{pair}"), args, chance, shim=False))
        entry: dict[str, Any] = {"pair": pair, "with": as_fields(ours[-1]), "without": as_fields(bare[-1])}
        text = f"pair {pair}: with the shim {ours[-1].total_s:.3f} s, without it {bare[-1].total_s:.3f} s"
        if not args.no_hang:
            stopped.append(stop(fresh(directory, f"stopped-{pair}"), args, chance))
            entry["stopped"] = as_fields(stopped[-1])
            text += (
                f"; stopped: diagnosis after {stopped[-1].diagnosis_s:.2f} s, a step {stopped[-1].total_s:.3f} s later"
            )
        say(args.json, entry, f"{text}; ms: {dict(ours[-1].phases_ms)} and {dict(bare[-1].phases_ms)}")
    result = summary(ours, bare, stopped)
    say(args.json, result, "\n".join(f"{name}: {value}" for name, value in result.items()))


def as_fields(one: Recovery) -> dict[str, Any]:
    """Return the fields of one recovery for a line of output."""
    fields: dict[str, Any] = {"rank": one.rank, "total_s": round(one.total_s, 4), "phases_ms": one.phases_ms}
    if one.diagnosis:
        return {**fields, "hang_to_diagnosis_s": round(one.diagnosis_s, 4), "sentence": one.diagnosis["sentence"]}
    return {**fields, "taken_down_ms": one.taken_down_ms}


def summary(ours: list[Recovery], bare: list[Recovery], stopped: list[Recovery]) -> dict[str, Any]:
    """Return the last line."""
    with_s, without_s = _median_s(ours), _median_s(bare)
    result: dict[str, Any] = {
        "with_shim_s": round(with_s, 4),
        "without_shim_s": round(without_s, 4),
        "share": round(with_s / without_s, 3),
        "phases_ms": {"with": _phases(ours), "without": _phases(bare)},
        "taken_down_ms": round(statistics.median(one.taken_down_ms for one in [*ours, *bare]), 1),
        "pairs": len(ours),
        "with_shim_all_s": [round(one.total_s, 3) for one in ours],
        "without_shim_all_s": [round(one.total_s, 3) for one in bare],
    }
    if stopped:
        result |= {
            "hang_to_diagnosis_s": round(statistics.median(one.diagnosis_s for one in stopped), 3),
            "diagnosis_to_step_s": round(_median_s(stopped), 4),
            "hang_to_diagnosis_all_s": [round(one.diagnosis_s, 3) for one in stopped],
            "diagnosis_to_step_all_s": [round(one.total_s, 3) for one in stopped],
        }
        result["phases_ms"]["stopped"] = _phases(stopped)
    return result


def _median_s(found: list[Recovery]) -> float:
    return statistics.median(one.total_s for one in found)


def _phases(found: list[Recovery]) -> dict[str, float]:
    names = [name for name in found[0].phases_ms if all(name in one.phases_ms for one in found)]
    return {name: round(statistics.median(one.phases_ms[name] for one in found), 1) for name in names}
