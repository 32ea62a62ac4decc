"""Many faults in one run: a check that each is recovered from, and that nothing grows.

    python -m benchmarks.soak --faults 200 --json

Method. `scripts/train.py` runs with 4 ranks as the seed's scripts start it, `python manager.py` beside torchrun. A
random rank gets SIGKILL at a random moment within `--moment-ms`. The moment comes once the world of the last recovery
has made a step and a warm process waits. Now and then two ranks are killed at once. One rank, the survivor, is spared,
so one process lives through all recoveries. Its descriptors, threads and memory are compared, and those of the torchrun
process (the agent) and of the manager. They are counted before the first fault, after the last recovery, and at some
faults in between.

A fault counts as recovered when the journal has its recovery in place: a new process for each killed rank, the very
same processes for all others, and training continued at the step where it stopped. At the end the job gets its last
step. A second run trains as many steps under plain torchrun, undisturbed. The weights of both are compared bit for bit.

In the last line `fds`, `threads` and `rss_mb` are `[first, last]` of the survivor; `agent` and `manager` hold theirs.

`--hostile` gives manager and job a secret, and adds two neighbours for the whole time. One floods the manager's port
without the secret: 50 connections a second, of which the newest 200 stay open. They are silent, noise, cut greetings
and handshakes, or CURVE with wrong keys. The other neighbour has the secret, and is no node of the job. It sends 100
well-typed random messages a second, under names of its own and of the job's agent. They are for the place that is held
and for one that does not exist. Then all processes of the job are counted 50 times, and files and records too
(`census.py`). Pairs are medians of the first tenth of the run and of the last. The run fails if anything is not flat
(`not_flat` names it), or if the neighbours did not do their work.

`--uneven` disturbs nothing and counts false alarms of a job with uneven steps instead (see `uneven.py`). `--foreign`
counts those of a job in which rank 0 now and then does other work for minutes (see `foreign.py`).
"""

import argparse
import json
import os
import random
import signal
import socket
import statistics
import sys
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.census import (
    FILES,
    RECORDS,
    Counts,
    below,
    files,
    first_and_last,
    for_each_fault,
    grown,
    holdings,
    records,
    template,
)
from benchmarks.foreign import soak_foreign
from benchmarks.hostile import Hostile, idle
from benchmarks.job import (
    ROOT,
    SCRIPT,
    START_LIMIT_S,
    BenchmarkError,
    Job,
    Journal,
    StepLogs,
    measured,
    say,
    started,
    stock_environment,
    taskd_environment,
    torchrun,
    training,
)
from benchmarks.uneven import soak_uneven
from taskd.core.warm_starts import RESERVE

RECOVERY_LIMIT_S = 90
COUNTS_OF_HOSTILE = 50
STEPS_TO_GO = 200
"""Distance from the survivor's newest step to the last step, when the last step is written into the stop file."""
MANAGER = ROOT / "benchmarks" / "scripts" / "manager.py"


@dataclass(frozen=True)
class Fault:
    """One kill, of one or two ranks."""

    ranks: tuple[int, ...]
    recovered: bool
    total_ms: float
    text: str


def free_ports(count: int) -> list[int]:
    """Return ports of this machine that are free at the moment."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(server.getsockname()[1]) for server in sockets]


class Soak:
    """One run with its faults."""

    def __init__(self, directory: Path, args: argparse.Namespace) -> None:
        self.logs = StepLogs(directory / "steps", args.ranks)
        self.stop_file = directory / "last-step"
        self.out = directory / "soak.json"
        self.faults: list[Fault] = []
        self.censuses: dict[str, list[Counts]] = {}
        self.hostile: Hostile | None = None
        self._args = args
        self._directory = directory
        self._journal = Journal(directory / "run")
        self._chance = random.Random(args.seed)
        self._survivor = args.ranks - 1

    def run(self) -> int:
        """Disturb a whole job; return the number of its steps."""
        store_port, manager_port = free_ports(2)
        if self._args.hostile:
            self.hostile = Hostile(self._directory, manager_port, self._args.ranks, self._args.seed)
        env = {
            **taskd_environment(self._directory / "run"),
            "MASTER_ADDR": "127.0.0.1",
            "TASKD_MANAGER_PORT": str(manager_port),
            **(self.hostile.env if self.hostile is not None else {}),
        }
        serve = [sys.executable, str(MANAGER), str(self._args.ranks)]
        try:
            with started(serve, env, self._manager_log) as manager:
                with started(self._command(store_port), env, self._directory / "job.log") as job:
                    steps = self._soak(job, manager)
                manager.wait(30)
        except BenchmarkError as error:
            stopped = self._journal.last("stopped")
            raise BenchmarkError(f"{error}; it was stopped: {stopped['reason']}" if stopped else str(error)) from None
        finally:
            if self.hostile is not None:
                self.hostile.close()
        return steps

    @property
    def refused(self) -> dict[str, int]:
        """Number of the manager's refusals by kind, once it has ended."""
        refused: dict[str, int] = self._journal.last("refused").get("counts", {})
        return refused

    @property
    def _manager_log(self) -> Path:
        return self._directory / "manager.log"

    def _soak(self, job: Job, manager: Job) -> int:
        job.await_warm(self._journal)
        pids = {"worker": self._journal.pids[self._survivor], "agent": job.pid, "manager": manager.pid}
        if self.hostile is not None:
            pids["template"] = template(job.pid)
            self.hostile.begin(manager.pid)
        for number in range(self._args.faults):
            self._count(number, pids, job)
            self._disturb(number, job)
        self._count(self._args.faults, pids, job)
        if self.hostile is not None:
            self.hostile.end()
            both = self.hostile.quiet, self.hostile.census(manager.pid)
            self.censuses["manager, hung up"] = [{key: one[key] for key in ("fds", "threads")} for one in both]
        steps = self._end()
        job.wait(START_LIMIT_S)
        return steps

    def _command(self, port: int) -> list[str]:
        words = training(self.logs, self._args.step_ms, "--stop-file", self.stop_file, "--out", self.out)
        distributed = f"--nnodes 1 --node_rank 0 --master_addr 127.0.0.1 --master_port {port} --max_restarts 32767"
        return torchrun(words, self._args.ranks, *distributed.split())

    def _disturb(self, number: int, job: Job) -> None:
        self._settle(job)
        time.sleep(self._chance.uniform(0, self._args.moment_ms / 1000))  # the random moment of the fault
        before = self._journal.pids
        done = self._journal.count("recovered")
        mortal = [rank for rank in before if rank != self._survivor]
        count = 2 if self._chance.random() < self._args.pairs and len(mortal) > 1 else 1
        victims = tuple(sorted(self._chance.sample(mortal, count)))
        strangers = {before[rank] for rank in victims}.difference(below(job.pid))
        if strangers:  # a hostile peer must not choose the processes to kill
            raise BenchmarkError(
                f"the journal names processes {strangers} for {victims}, which torchrun has not started"
            )
        for rank in victims:
            os.kill(before[rank], signal.SIGKILL)
        job.await_until(
            lambda: self._journal.count("recovered") > done, f"recovery {number} of ranks {victims}", RECOVERY_LIMIT_S
        )
        self.faults.append(judge(self._journal.last("recovered"), before, victims))
        fault = self.faults[-1]
        say(
            self._args.json,
            {
                "fault": number,
                "ranks": fault.ranks,
                "recovered": fault.recovered,
                "total_ms": fault.total_ms,
                "text": fault.text,
            },
            f"fault {number}: ranks {fault.ranks}, {fault.total_ms:.0f} ms: {fault.text}",
        )

    def _settle(self, job: Job) -> None:
        """Wait for a step of the newest world, and for a warm process."""

        def settled() -> bool:
            newest = self._journal.last("directive").get("generation")
            return self._journal.warm and self._journal.last("first step").get("generation") == newest

        job.await_until(settled, "a step and a warm process", RECOVERY_LIMIT_S)

    def _rest(self, job: Job) -> None:
        """Wait until the dead are collected too: only torchrun's ranks, template, standby and reserve are left.

        On a busy machine that takes a while after a fault. Until then, other processes hold descriptors for them.
        """
        self._settle(job)
        job.await_until(
            lambda: len(below(job.pid)) <= self._args.ranks + 3 + RESERVE, "the dead to be collected", RECOVERY_LIMIT_S
        )

    def _count(self, number: int, pids: dict[str, int], job: Job) -> None:
        """Count all resources if it is time, with the job at rest: 10 times in a run, 50 times in a hostile one."""
        faults = self._args.faults
        if number != faults and number % max(1, faults // (COUNTS_OF_HOSTILE if self.hostile is not None else 10)):
            return
        self._rest(job)
        now = {name: holdings([pid]) for name, pid in pids.items()}
        if self.hostile is not None:
            now |= self._count_more(self.hostile, number, pids)
        for name, counted in now.items():
            self.censuses.setdefault(name, []).append(counted)
        text = "; ".join(
            f"{name}: " + ", ".join(f"{value:g} {key}" for key, value in counted.items())
            for name, counted in now.items()
        )
        say(self._args.json, {"faults": number, "census": now}, f"after {number} faults: {text}")

    def _count_more(self, hostile: Hostile, number: int, pids: dict[str, int]) -> dict[str, Counts]:
        """Return the counts of everything that a neighbour could make grow."""
        run_dir = self._directory / "run"
        return {
            "manager": hostile.census(pids["manager"]),
            "ranks": holdings(self._journal.pids.values()),
            "below the agent": {"processes": len(below(pids["agent"]))},
            FILES: files(run_dir, pids["agent"]),
            RECORDS: {"faults": number, **records(run_dir, self._manager_log)},
        }

    def _end(self) -> int:
        pid = self.logs.starts(self._survivor)[-1]
        last = max(self.logs.steps(self._survivor, pid)) + STEPS_TO_GO
        fresh = self.stop_file.with_suffix(".new")
        fresh.write_text(str(last))
        fresh.replace(self.stop_file)
        return last


def judge(record: dict[str, Any], before: dict[int, int], victims: tuple[int, ...]) -> Fault:
    """Return the kill of these victims as a fault: it is recovered if the record is of a recovery in place."""
    kept = {int(rank): pid for rank, pid in record["kept"].items()}
    wanted = {rank: pid for rank, pid in before.items() if rank not in victims}
    total_ms = record["phases_ms"].get("total", 0.0)
    if record["restart"]:
        return Fault(victims, False, total_ms, f"the whole job was restarted: {record['reason']}")
    if kept != wanted:
        return Fault(victims, False, total_ms, f"kept {kept}, expected {wanted}: {record['reason']}")
    warm = all(record["warm"][str(rank)] for rank in victims)
    return Fault(victims, True, total_ms, f"step {record['target_step']}, {'warm' if warm else 'cold'}")


def undisturbed(directory: Path, args: argparse.Namespace, steps: int) -> dict[str, Any]:
    """Run the same training under plain torchrun; return its outcome."""
    logs = StepLogs(directory / "undisturbed", args.ranks)
    out = directory / "undisturbed.json"
    words: list[object] = [SCRIPT, "--record", logs.directory, "--steps", steps, "--out", out]
    command = torchrun(words, args.ranks, "--standalone", "--max-restarts", 0)
    with started(command, stock_environment(), directory / "undisturbed.log") as job:
        job.wait(START_LIMIT_S + steps)
    result: dict[str, Any] = json.loads(out.read_text())
    return result


def summary(soak: Soak, identical: bool, steps: int) -> dict[str, Any]:
    """Return the last line."""

    def first_and_last_of(name: str) -> dict[str, list[float]]:
        counted = soak.censuses[name]
        return for_each_fault(counted) if name == RECORDS else first_and_last(counted)

    figures = {name: first_and_last_of(name) for name in soak.censuses if name != "worker"}
    last: dict[str, Any] = {
        "faults": len(soak.faults),
        "recovered": sum(fault.recovered for fault in soak.faults),
        "weights_identical": identical,
        **first_and_last_of("worker"),
        **figures,
        "steps": steps,
        "ranks_killed": dict(sorted(Counter(rank for fault in soak.faults for rank in fault.ranks).items())),
        "two_at_once": sum(len(fault.ranks) > 1 for fault in soak.faults),
        "cold": sum("cold" in fault.text for fault in soak.faults),
        "median_ms": round(statistics.median(fault.total_ms for fault in soak.faults), 1),
        "slowest_ms": max(fault.total_ms for fault in soak.faults),
    }
    if soak.hostile is not None:
        last["hostile"] = soak.hostile.result(soak.refused)
        last["idle"] = idle(last["hostile"])
        last["not_flat"] = grown({"worker": first_and_last_of("worker"), **figures})
    return last


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200, help="(default 200)")
    parser.add_argument("--ranks", type=int, default=4, help="(default 4)")
    parser.add_argument("--pairs", type=float, default=0.1, help="share of faults that kill two ranks (default 0.1)")
    parser.add_argument("--moment-ms", type=float, default=300, help="a fault comes within this time (default 300)")
    parser.add_argument("--step-ms", type=float, default=20, help="least duration of a step (default 20)")
    parser.add_argument("--seed", type=int, default=0, help="of victims and moments; with --uneven, the first one")
    parser.add_argument("--hostile", action="store_true", help="with neighbours that flood the manager, and lie to it")
    parser.add_argument("--uneven", action="store_true", help="count false alarms of a job with uneven steps instead")
    parser.add_argument("--foreign", action="store_true", help="count healthy ranks that are replaced for their work")
    parser.add_argument("--virtual", action="store_true", help="in virtual time: half an hour of each, or whole days")
    parser.add_argument("--seeds", type=int, help="with --virtual: of each length of a step 10, of days 1")
    parser.add_argument("--hours", type=float, default=2, help="with --foreign, of a real job (default 2)")
    parser.add_argument("--minutes", type=float, default=30, help="with --uneven, of a real job (default 30)")
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    args = parser.parse_args(words)
    args.seeds = args.seeds or (1 if args.foreign else 10)
    return args


def main(words: list[str] | None = None) -> int:
    """Run; return 0 only if every fault was recovered and the weights are identical."""
    args = arguments(words)
    if args.foreign:
        return soak_foreign(args)
    if args.uneven:
        return soak_uneven(args)

    def measure(directory: Path) -> None:
        soak = Soak(directory, args)
        steps = soak.run()
        result, wanted = json.loads(soak.out.read_text()), undisturbed(directory, args, steps)
        identical = result == wanted and result["ranks_equal"]
        last = summary(soak, identical, steps)
        say(args.json, last, "\n".join(f"{name}: {value}" for name, value in last.items()))
        wrong = [] if identical else ["the weights differ from those of the undisturbed run"]
        if last["recovered"] != args.faults:
            wrong.append(f"{args.faults - last['recovered']} faults were not recovered in place")
        wrong += [f"not flat: {text}" for text in last.get("not_flat", [])] + last.get("idle", [])
        if wrong:
            raise BenchmarkError(f"not as promised: {'; '.join(wrong)}")

    return measured(measure)


if __name__ == "__main__":
    sys.exit(main())
